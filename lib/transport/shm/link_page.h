// The page that both ends of a link share. An end that closes the link says so here before it uses
// lent memory for anything else: bytes that the peer copies after that may be no payload any more.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "lib/base/fd.h"
#include "lib/memory/segment.h"
#include "lib/transport/shm/shared_file.h"

namespace addend::shm {

class LinkPage {
 public:
  // For the connecting end, which passes file() to its peer. RESOURCE_EXHAUSTED.
  static absl::StatusOr<LinkPage> Create();
  // For the listening end. As MappedFile::Map().
  static absl::StatusOr<LinkPage> Map(const UniqueFd& file);

  int file() const { return made_->fd(); }
  void Withdraw() { own_->exchange(1); }
  bool peer_has_withdrawn() const { return peers_->load() != 0; }

 private:
  using Word = std::atomic<uint32_t>;
  static_assert(Word::is_always_lock_free);

  std::shared_ptr<Segment> made_;       // of the connecting end
  std::shared_ptr<MappedFile> mapped_;  // of the listening end
  Word* own_ = nullptr;
  const Word* peers_ = nullptr;
};

}  // namespace addend::shm
