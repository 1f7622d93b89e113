#include "lib/transport/shm/link_page.h"

#include "lib/base/status_macros.h"

namespace addend::shm {
namespace {

constexpr size_t kBytes = 4096;

}  // namespace

absl::StatusOr<LinkPage> LinkPage::Create() {
  LinkPage page;
  ADDEND_ASSIGN_OR_RETURN(page.made_,
                          Segment::Create("addend-link", kBytes, Segment::Peer::kMayWrite));
  auto* const words = reinterpret_cast<Word*>(page.made_->memory().data());
  page.own_ = words;
  page.peers_ = words + 1;
  return page;
}

absl::StatusOr<LinkPage> LinkPage::Map(const UniqueFd& file) {
  ADDEND_ASSIGN_OR_RETURN(MappedFile mapped,
                          MappedFile::Map(file, kBytes, MappedFile::Access::kReadWrite));
  LinkPage page;
  page.mapped_ = std::make_shared<MappedFile>(std::move(mapped));
  auto* const words = reinterpret_cast<Word*>(page.mapped_->memory().data());
  page.own_ = words + 1;
  page.peers_ = words;
  return page;
}

}  // namespace addend::shm
