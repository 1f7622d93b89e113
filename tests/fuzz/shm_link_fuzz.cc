// Everything that a local process can send to a socket of the shared memory transport, descriptors
// included: no input crashes the shard, a payload exactly fills its memory and comes from where it
// may come from, and the link ends with its peer.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/fd.h"
#include "lib/base/mutex.h"
#include "lib/base/passed_files.h"
#include "lib/transport/shm/factory.h"
#include "lib/transport/shm/record.h"
#include "tests/fuzz/check.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/rooms.h"

namespace addend::fuzz {
namespace {

using shm::Kind;
using shm::Record;

constexpr size_t kFileBytes = 16 << 10;

class Taker final : public Sink {
 public:
  absl::StatusOr<MutableBytes> Place(const FrameHeader& header) override {
    return rooms_.For(header);
  }
  absl::Status OnFrame(const FrameHeader& header, Payload payload) override {
    const std::string text = rooms_.Take(header, payload.bytes());
    FUZZ_CHECK(raw || text.find_first_not_of("fs") == std::string::npos,
               "a payload is of the socket or of a file");
    return absl::OkStatus();
  }
  void OnClosed(absl::Status) override {
    const MutexLock lock(&mu_);
    closed_ = true;
    changed_.NotifyAll();
  }
  // Bytes were sent that may be a frame with any payload.
  std::atomic<bool> raw{false};
  void AwaitEnd() {
    MutexLock lock(&mu_);
    while (!closed_) changed_.Wait(&mu_);
  }

 private:
  Rooms rooms_;
  Mutex mu_;
  CondVar changed_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

// A shard that accepts links; the next link's sink is `taker`.
struct Shard {
  Shard() : name(absl::StrFormat("fuzz-%d", ::getpid())), loop(*EventLoop::Start("shard")) {
    loop->Run([this] {
      transport = MakeSharedMemoryTransport(loop.get());
      const auto listening = transport->Listen({.host = name}, [this](Link* link) -> Sink* {
        link->Share(1);
        return taker;
      });
      FUZZ_CHECK(listening.ok(), "a socket to listen on");
    });
  }
  const std::string name;
  const std::unique_ptr<EventLoop> loop;
  std::shared_ptr<Transport> transport;
  Taker* taker = nullptr;
};

UniqueFd File(uint8_t kind) {
  UniqueFd file(::memfd_create("f", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const std::string bytes(kFileBytes, 'f');
  FUZZ_CHECK(::write(file.get(), bytes.data(), bytes.size()) == kFileBytes, "memory");
  if (kind != 1) ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK);
  if (kind == 2) file = UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC));
  return file;
}

class Peer {
 public:
  explicit Peer(const std::string& name) : socket_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    FUZZ_CHECK(::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), bytes) == 0,
               "a listener");
  }
  // False: the link has ended.
  bool Write(const std::string& bytes, int file = -1) {
    if (bytes.empty()) return true;
    iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    PassedFiles<1> files;
    if (file >= 0) files.Send({&file, 1}, &message);
    return ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }
  void End() { ::shutdown(socket_.get(), SHUT_WR); }

 private:
  const UniqueFd socket_;
};

std::string TextOf(const Record& record) {
  return {reinterpret_cast<const char*>(&record), sizeof(record)};
}

std::string AnyFrame(Input* input, const Record& record) {
  FrameHeader header;
  header.type = static_cast<FrameType>(2 + input->Number<uint8_t>(10));
  header.partition = PartitionId(input->Number<uint64_t>(8));
  header.payload_bytes = input->Number<uint32_t>(96);
  EncodedHeader encoded;
  EncodeHeader(header, &encoded);
  std::string text =
      TextOf(record) + std::string(reinterpret_cast<const char*>(encoded.data()), encoded.size());
  if (record.kind == Kind::kFrame) text.append(header.payload_bytes % (Rooms::kMost + 1), 's');
  return text;
}

bool SendAny(Input* input, Peer* peer, Taker* taker) {
  Record record{.kind = static_cast<Kind>(input->Number<uint32_t>(8)),
                .segment = input->Number<uint32_t>(4)};
  switch (record.kind) {
    case Kind::kPage:
    case Kind::kSegment: {
      record.value = input->Flag() ? kFileBytes - 4096 : input->Number<uint64_t>(64);
      record.guard = input->Flag() ? 0 : input->Number<uint64_t>(64) << 8;
      const uint8_t kind = input->Take() % 8;
      return peer->Write(TextOf(record), kind == 7 ? -1 : File(kind).get());
    }
    case Kind::kFrame:
    case Kind::kLent:
      record.value = input->Number<uint64_t>(64) << (input->Take() % 8);
      return peer->Write(AnyFrame(input, record));
    case Kind::kRelease:
    case Kind::kForget:
      record.value = input->Number<uint64_t>(4);
      return peer->Write(TextOf(record));
    default:
      taker->raw = true;
      return peer->Write(std::string(input->Bytes(input->Take())));
  }
}

}  // namespace
}  // namespace addend::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace addend::fuzz;
  static Shard* const shard = new Shard;
  Input input(data, size);
  Taker taker;
  shard->taker = &taker;
  Peer peer(shard->name);
  bool open = input.Take() % 8 == 0 ||
              peer.Write(TextOf({.kind = addend::shm::Kind::kPage}), File(0).get());
  while (open && !input.empty()) open = SendAny(&input, &peer, &taker);
  peer.End();
  taker.AwaitEnd();
  shard->loop->Run([] {});  // the link is gone
  return 0;
}
