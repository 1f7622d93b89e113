// A full socket blocks no sender: Send queues the message and wakes the receiver by the eventfd,
// and the receiver polls for room in the socket and sends the queue.
#include "lib/client/socket.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>

#include "lib/base/passed_files.h"

namespace addend::client {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kSayEvery = std::chrono::seconds(5);
constexpr size_t kMaxFds = 4;

Error MakeDescriptors(GuardedFd* socket, GuardedFd* wake) {
  const ForkLock lock;
  const int socket_fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket_fd >= 0) *socket = GuardedFd(socket_fd, lock);
  const int wake_fd = socket_fd < 0 ? -1 : ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd >= 0) *wake = GuardedFd(wake_fd, lock);
  if (wake_fd >= 0) return {};
  return MakeError(ADDEND_ERROR_RESOURCES, "cannot make a Unix socket: %s",
                   SystemError(errno).c_str());
}

// Returns 0, or the errno of the failure. A Unix socket that failed to connect may try again.
int ConnectOnce(int fd, const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());  // the length was checked
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  return ::connect(fd, generic, sizeof(address)) == 0 ? 0 : errno;
}

// EAGAIN: the agent has not yet accepted the ranks before this rank.
bool MayComeLater(int error_number) {
  return error_number == ENOENT || error_number == ECONNREFUSED || error_number == EAGAIN;
}

Error ConnectError(const std::string& path, int error_number, double waited_s) {
  const std::string reason = SystemError(error_number);
  if (error_number == EACCES || error_number == EPERM) {
    return MakeError(ADDEND_ERROR_PERMISSION,
                     "may not connect to the agent at %s: %s; run the trainer as the agent's user "
                     "or give it access to the socket",
                     path.c_str(), reason.c_str());
  }
  if (error_number == EPROTOTYPE || error_number == ENOTDIR) {
    return MakeError(ADDEND_ERROR_INVALID,
                     "%s is not the socket of an addend-agent (%s); set ADDEND_SOCKET to its "
                     "--socket",
                     path.c_str(), reason.c_str());
  }
  return MakeError(ADDEND_ERROR_UNREACHABLE,
                   "no agent at %s after %.0f s: %s; start addend-agent on this machine, or set "
                   "ADDEND_SOCKET to its --socket",
                   path.c_str(), waited_s, reason.c_str());
}

}  // namespace

Error AgentSocket::Connect(const std::string& path, double timeout_s,
                           std::unique_ptr<AgentSocket>* socket) {
  std::unique_ptr<AgentSocket> made(new AgentSocket(path));
  made->buffer_.resize(ipc::kMaxMessageBytes);
  Error error = MakeDescriptors(&made->fd_, &made->wake_);
  if (!error.ok()) return error;
  const Clock::time_point start = Clock::now();
  Clock::time_point say_at = start + kSayEvery;
  for (;;) {
    const int error_number = ConnectOnce(made->fd_.get(), path);
    if (error_number == 0) break;
    const Clock::time_point now = Clock::now();
    const double waited_s = std::chrono::duration<double>(now - start).count();
    if (!MayComeLater(error_number) || waited_s >= timeout_s) {
      return ConnectError(path, error_number, waited_s);
    }
    if (now >= say_at) {
      Say(Format("waiting for the agent at %s: %s, %.0f s", path.c_str(),
                 SystemError(error_number).c_str(), waited_s));
      say_at = now + kSayEvery;
    }
    ::poll(nullptr, 0, kRetryMs);
  }
  *socket = std::move(made);
  return {};
}

AgentSocket::~AgentSocket() = default;

bool AgentSocket::TrySend(const Outgoing& message) {
  iovec part = {const_cast<char*>(message.bytes.data()), message.bytes.size()};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  PassedFiles<1> files;
  const int fd = message.fd.get();
  if (message.fd.valid()) files.Send({&fd, 1}, &header);
  for (;;) {
    const ssize_t sent = ::sendmsg(fd_.get(), &header, MSG_DONTWAIT | MSG_NOSIGNAL | MSG_EOR);
    if (sent >= 0) return true;
    if (errno == EINTR) continue;
    // ENOBUFS is temporary as well; any other error means that the agent is gone.
    return errno != EAGAIN && errno != ENOBUFS;
  }
}

Error AgentSocket::UseRings(int fd) {
  Error error = Segment::Map(fd, sizeof(ipc::RingsMemory), Segment::Access::kReadWrite,
                             "the queues of messages", &rings_);
  if (!error.ok()) return error;
  auto* const memory = reinterpret_cast<ipc::RingsMemory*>(rings_->data());
  const std::lock_guard<std::mutex> lock(send_mu_);
  in_.emplace(&memory->to_trainer);
  out_.emplace(&memory->to_agent);
  sent_ = received_ = 0;
  return {};
}

std::string AgentSocket::BytesOf(const ipc::Message& fixed, const ipc::Encoded& message) {
  std::string bytes(reinterpret_cast<const char*>(&fixed), sizeof(fixed));
  bytes.append(reinterpret_cast<const char*>(message.dims.data()),
               message.dims.size() * sizeof(int64_t));
  bytes.append(message.text);
  return bytes;
}

void AgentSocket::Send(const ipc::Encoded& message, GuardedFd fd) {
  ipc::Message fixed = message.fixed;
  fixed.dims = static_cast<uint32_t>(message.dims.size());
  fixed.text_bytes = static_cast<uint32_t>(message.text.size());
  const bool fixed_only = fixed.dims == 0 && fixed.text_bytes == 0 && !fd.valid();
  const std::lock_guard<std::mutex> lock(send_mu_);
  if (fixed_only && out_ && out_->Write(fixed, sent_)) {
    const ipc::Encoded bell = ipc::BellMessage().Encode();
    if (out_->MustRing()) SendOrQueue({BytesOf(bell.fixed, bell), {}});
    return;
  }
  ++sent_;
  SendOrQueue({BytesOf(fixed, message), std::move(fd)});
}

// With send_mu_ held.
void AgentSocket::SendOrQueue(Outgoing outgoing) {
  if (queued_.empty() && TrySend(outgoing)) return;
  queued_.push_back(std::move(outgoing));
  Poke();  // from now on the receiver also waits for room in the socket
}

void AgentSocket::SendQueued() {
  std::vector<Outgoing> sent;  // their descriptors are closed after the lock is released
  const std::lock_guard<std::mutex> lock(send_mu_);
  while (!queued_.empty() && TrySend(queued_.front())) {
    sent.push_back(std::move(queued_.front()));
    queued_.pop_front();
  }
}

bool AgentSocket::HasQueued() {
  const std::lock_guard<std::mutex> lock(send_mu_);
  return !queued_.empty();
}

void AgentSocket::Poke() {
  const uint64_t one = 1;
  // A full counter also wakes the receiver.
  [[maybe_unused]] const ssize_t ignored = ::write(wake_.get(), &one, sizeof(one));
}

void AgentSocket::Wake() {
  woken_.store(true);
  Poke();
}

Error AgentSocket::Parse(const char* data, size_t bytes, Packet* packet) const {
  ipc::Message& message = packet->message;
  if (bytes < sizeof(message)) {
    return MakeError(ADDEND_ERROR_VERSION,
                     "the agent at %s sent a message of %zu bytes, but the shortest has %zu; use "
                     "libaddend.so and addend-agent of one release",
                     path_.c_str(), bytes, sizeof(message));
  }
  std::memcpy(&message, data, sizeof(message));
  if (message.magic != ipc::kMagic || !protocol::kTrainers.Contains(message.version)) {
    return MakeError(ADDEND_ERROR_VERSION,
                     "the agent at %s speaks version %u of the trainers' protocol (magic %08x), "
                     "this library version %u; use libaddend.so and addend-agent of one release",
                     path_.c_str(), message.version, message.magic, ipc::kVersion);
  }
  if (message.dims != 0 || message.text_bytes != bytes - sizeof(message)) {
    return MakeError(ADDEND_ERROR_INTERNAL,
                     "the agent at %s sent a message of type %u with a wrong length", path_.c_str(),
                     static_cast<unsigned>(message.type));
  }
  packet->text.assign(data + sizeof(message), message.text_bytes);
  return {};
}

// The socket comes first where it has something: a bell that stays there would wake other threads.
// What it brings is kept until the entries before it are delivered. kTimeout: no packet is there.
Error AgentSocket::ReceiveNow(Packet* packet, Event* event) {
  bool empty = false;
  while (!empty && !closed_ && !held_ && MayRead()) {
    Error error = Read(packet, event);
    if (!error.ok()) return error;
    empty = *event == Event::kTimeout;
    closed_ = *event == Event::kClosed;
    if (*event == Event::kPacket && !IsBell(*packet)) held_ = std::move(*packet);
  }
  *event = Event::kPacket;
  if (in_ && in_->Look(received_) != ipc::RingReader::State::kEmpty) return TakeFromRing(packet);
  if (held_) {
    *packet = *std::exchange(held_, std::nullopt);
    ++received_;
    return {};
  }
  *event = closed_ ? Event::kClosed : Event::kTimeout;
  return {};
}

// Another message may lie behind a bell, and the next poll will say so; mostly there is nothing.
bool AgentSocket::IsBell(const Packet& packet) {
  if (!in_ || packet.message.type != ipc::Type::kBell) return false;
  in_->OnBell();
  readable_.store(false, std::memory_order_relaxed);
  return true;
}

Error AgentSocket::TakeFromRing(Packet* packet) {
  if (in_->Look(received_) == ipc::RingReader::State::kBroken) {
    return MakeError(ADDEND_ERROR_INTERNAL, "the agent at %s has broken the queue of its messages",
                     path_.c_str());
  }
  const ipc::Message message = in_->Take();
  packet->fds.clear();
  return Parse(reinterpret_cast<const char*>(&message), sizeof(message), packet);
}

// A caller that looks again and again without waiting has to find the messages of the socket too.
bool AgentSocket::MayRead() {
  constexpr uint32_t kLooks = 16;
  return !in_ || readable_.load(std::memory_order_relaxed) || in_->AwaitsSocket(received_) ||
         ++looks_ % kLooks == 0;
}

// kTimeout: the socket is empty.
Error AgentSocket::Read(Packet* packet, Event* event) {
  iovec part = {buffer_.data(), buffer_.size()};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  PassedFiles<kMaxFds> files;
  files.Receive(&header);
  packet->fds.clear();
  ssize_t received;
  {
    const ForkLock lock;
    received = ::recvmsg(fd_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (received >= 0) {
      files.Take(&header, [&](int fd) { packet->fds.emplace_back(fd, lock); });
    }
  }
  // ECONNRESET comes once, before the messages that the agent sent before closing.
  if (received < 0 && (errno == EINTR || errno == ECONNRESET)) {
    return Read(packet, event);
  }
  if (received < 0 && errno == EAGAIN) {
    readable_.store(false, std::memory_order_relaxed);
    *event = Event::kTimeout;
    return {};
  }
  *event = received <= 0 ? Event::kClosed : Event::kPacket;
  if (*event == Event::kClosed) return {};
  return Parse(buffer_.data(), static_cast<size_t>(received), packet);
}

Error AgentSocket::TryReceive(Packet* packet, Event* event) {
  if (!woken_.load()) return ReceiveNow(packet, event);
  *event = Event::kWoken;
  return {};
}

void AgentSocket::Await(int timeout_ms) { WaitForSocket(timeout_ms); }

// False after timeout_ms without a reason to look.
bool AgentSocket::WaitForSocket(int timeout_ms) {
  if (!in_) return Poll(timeout_ms);
  in_->Sleep();
  const bool looks = !in_->IsEmpty() || Poll(timeout_ms);
  in_->Woke();
  return looks;
}

bool AgentSocket::Poll(int timeout_ms) {
  pollfd polled[2] = {{fd_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
  if (HasQueued()) polled[0].events |= POLLOUT;
  const int ready = ::poll(polled, 2, timeout_ms);
  if (ready > 0 && polled[0].revents != 0) readable_.store(true, std::memory_order_relaxed);
  // The end stays visible to all who wait.
  if (ready > 0 && (polled[1].revents & POLLIN) != 0 && !woken_.load()) {
    uint64_t count;
    [[maybe_unused]] const ssize_t ignored = ::read(wake_.get(), &count, sizeof(count));
    if (woken_.load()) Poke();  // it came in between
  }
  if (ready > 0 && (polled[0].revents & POLLOUT) != 0) SendQueued();
  return ready != 0;
}

Error AgentSocket::Receive(int timeout_ms, Packet* packet, Event* event) {
  for (;;) {
    const Error error = TryReceive(packet, event);
    if (!error.ok() || *event != Event::kTimeout || !WaitForSocket(timeout_ms)) return error;
  }
}

void AgentSocket::Flush(int timeout_ms) {
  const Clock::time_point deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  for (;;) {
    SendQueued();
    if (!HasQueued() || Clock::now() >= deadline) return;
    pollfd polled = {fd_.get(), POLLOUT, 0};
    ::poll(&polled, 1, 10);
  }
}

}  // namespace addend::client
