// Reads and writes the trainers' messages, with the descriptors that travel with them.
#include "services/worker_agent/trainer_port.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/limits.h"
#include "lib/base/log.h"
#include "lib/base/passed_files.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"

namespace addend {
namespace {

constexpr int kMessagesPerTurn = 64;
constexpr size_t kTrainersMax = 1024;
constexpr size_t kMaxFds = 4;  // the kernel closes further descriptors

absl::StatusOr<sockaddr_un> SocketAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--socket=%s: a socket's path has 1 to %d bytes", path, sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

bool SomebodyListens(const sockaddr_un& address) {
  const UniqueFd probe(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  return ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

// The first of the descriptors that came with a message; the others are closed.
UniqueFd TakeDescriptor(msghdr* header) {
  UniqueFd first;
  PassedFiles<kMaxFds>::Take(header, [&first](int fd) {
    UniqueFd received(fd);
    if (!first.valid()) first = std::move(received);
  });
  return first;
}

bool IsBell(std::span<const std::byte> packet) {
  ipc::Message message;
  if (packet.size() != sizeof(message)) return false;
  std::memcpy(&message, packet.data(), sizeof(message));
  return message.magic == ipc::kMagic && message.type == ipc::Type::kBell;
}

}  // namespace

TrainerLink::TrainerLink(EventLoop* loop, UniqueFd fd, TrainerEvents* events,
                         std::function<void(TrainerLink*)> gone)
    : loop_(loop), fd_(std::move(fd)), events_(events), gone_(std::move(gone)) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (::getsockopt(fd_.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0)
    pid_ = credentials.pid;
}

TrainerLink::~TrainerLink() { loop_->Unwatch(fd_.get()); }

absl::Status TrainerLink::Open() { return loop_->Watch(fd_.get(), EPOLLIN, this); }

void TrainerLink::Write(const ipc::Encoded& message,
                        std::vector<std::shared_ptr<Segment>> segments) {
  if (closing_) return;
  ipc::Message fixed = message.fixed;
  if (version_ != 0) fixed.version = version_;
  const std::string_view text = message.text.substr(0, ipc::kMaxTextBytes);
  fixed.text_bytes = static_cast<uint32_t>(text.size());
  if (text.empty() && segments.empty() && WriteToRing(fixed)) return;
  ++sent_;
  if (fixed.type == ipc::Type::kInitReply && fixed.code == 0 && wants_rings_) {
    if (auto rings = MakeRings(); rings != nullptr) segments.push_back(std::move(rings));
  }
  Queue(fixed, text, std::move(segments));
}

void TrainerLink::Queue(const ipc::Message& fixed, std::string_view text,
                        std::vector<std::shared_ptr<Segment>> segments) {
  Outgoing outgoing;
  outgoing.bytes.resize(sizeof(fixed) + text.size());
  std::memcpy(outgoing.bytes.data(), &fixed, sizeof(fixed));
  if (!text.empty()) {
    std::memcpy(outgoing.bytes.data() + sizeof(fixed), text.data(), text.size());
  }
  outgoing.segments = std::move(segments);
  outgoing_bytes_ += outgoing.bytes.size();
  outgoing_.push_back(std::move(outgoing));
  if (!want_write_) Flush();
  if (outgoing_bytes_ > kMaxUnreadTrainerBytes) {
    Close(absl::ResourceExhaustedError(absl::StrFormat(
        "the trainer does not read its socket: %d messages wait for it", outgoing_.size())));
  }
}

// Null: there is no memory for them, and all messages go by the socket.
std::shared_ptr<Segment> TrainerLink::MakeRings() {
  auto made =
      Segment::Create("queues of a trainer", sizeof(ipc::RingsMemory), Segment::Peer::kMayWrite);
  if (!made.ok()) {
    spdlog::warn("pid {} gets no queues: {}", pid_, Message(made.status()));
    return nullptr;
  }
  rings_ = *std::move(made);
  auto* const memory = reinterpret_cast<ipc::RingsMemory*>(rings_->memory().data());
  in_.emplace(&memory->to_agent);
  out_.emplace(&memory->to_trainer);
  sent_ = received_ = 0;
  StayAwake();
  return rings_;
}

bool TrainerLink::WriteToRing(const ipc::Message& message) {
  if (!out_ || !out_->Write(message, sent_)) return false;
  if (!out_->MustRing()) return true;
  Queue({.version = version_, .type = ipc::Type::kBell}, {}, {});
  return true;
}

bool TrainerLink::SendOne(const Outgoing& message) {
  iovec vector{const_cast<std::byte*>(message.bytes.data()), message.bytes.size()};
  msghdr header{};
  header.msg_iov = &vector;
  header.msg_iovlen = 1;
  PassedFiles<2> files;
  if (!message.segments.empty()) {
    int fds[2];
    ADDEND_CHECK(message.segments.size() <= 2, "a message carries at most two descriptors");
    for (size_t i = 0; i < message.segments.size(); ++i) fds[i] = message.segments[i]->fd();
    files.Send(std::span(fds, message.segments.size()), &header);
  }
  // The next read of the socket finds out that a trainer is gone.
  return ::sendmsg(fd_.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0 ||
         (errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS);
}

void TrainerLink::Flush() {
  while (!outgoing_.empty() && SendOne(outgoing_.front())) {
    outgoing_bytes_ -= outgoing_.front().bytes.size();
    outgoing_.pop_front();
  }
  const bool want_write = !outgoing_.empty();
  if (want_write != want_write_) {
    want_write_ = want_write;
    loop_->Modify(fd_.get(), want_write ? EPOLLIN | EPOLLOUT : EPOLLIN);
  }
}

void TrainerLink::Close(absl::Status why) {
  if (closing_) return;
  Flush();
  closing_ = true;
  loop_->Unwatch(fd_.get());
  ::shutdown(fd_.get(), SHUT_RDWR);
  loop_->Defer([this, alive = std::weak_ptr<bool>(alive_), why = std::move(why)] {
    if (alive.expired()) return;
    events_->OnTrainerGone(this, why);
    gone_(this);
  });
}

void TrainerLink::OnReady(uint32_t events) {
  if (events & EPOLLOUT) Flush();
  if (!closing_) Serve(/*readable=*/(events & ~uint32_t{EPOLLOUT}) != 0);
}

void TrainerLink::Serve(bool readable) {
  if (absl::Status status = ReadSome(readable); !status.ok()) return Close(std::move(status));
  StayAwake();
}

// While messages come, the link looks into its queue in each turn of the loop, and the trainer
// sends no bells.
void TrainerLink::StayAwake() {
  if (!in_ || awake_ || closing_) return;
  awake_ = true;
  loop_->Defer([this, alive = std::weak_ptr<bool>(alive_)] {
    if (!alive.expired()) SleepOrServe();
  });
}

void TrainerLink::SleepOrServe() {
  awake_ = false;
  if (closing_) return;
  if (!IsDue()) {
    in_->Sleep();
    asleep_ = true;
    if (!IsDue()) return;
  }
  Serve(/*readable=*/false);
}

bool TrainerLink::IsDue() const {
  return held_.has_value() || in_->Look(received_) != ipc::RingReader::State::kEmpty;
}

// The socket comes first where it has something, so that no flood in the queue hides its end.
absl::Status TrainerLink::ReadSome(bool readable) {
  if (std::exchange(asleep_, false)) in_->Woke();
  bool found = true;
  if (in_ && readable && !held_) ADDEND_RETURN_IF_ERROR(ReadSocket(&found));
  found = true;  // the queue may have something, whatever the socket has
  for (int i = 0; found && i < kMessagesPerTurn && !closing_; ++i) {
    ADDEND_RETURN_IF_ERROR(ReadOne(&found));
  }
  return absl::OkStatus();
}

// Entries of the queue come before a message of the socket, unless they say otherwise.
absl::Status TrainerLink::ReadOne(bool* found) {
  if (in_ && in_->Look(received_) != ipc::RingReader::State::kEmpty) return TakeFromRing();
  if (!held_) return ReadSocket(found);
  Packet packet = std::move(*held_);
  held_.reset();
  ++received_;
  return Parse(packet.bytes, std::move(packet.fd));
}

absl::Status TrainerLink::TakeFromRing() {
  if (in_->Look(received_) == ipc::RingReader::State::kBroken) {
    return absl::InvalidArgumentError("the trainer has broken the queue of its messages");
  }
  const ipc::Message message = in_->Take();
  return Parse(std::as_bytes(std::span(&message, 1)), UniqueFd());
}

absl::Status TrainerLink::ReadSocket(bool* found) {
  std::byte packet[ipc::kMaxMessageBytes];
  iovec part{packet, sizeof(packet)};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  PassedFiles<kMaxFds> files;
  files.Receive(&header);
  const ssize_t got = ::recvmsg(fd_.get(), &header, MSG_DONTWAIT | MSG_TRUNC | MSG_CMSG_CLOEXEC);
  *found = got >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
  if (!*found) return absl::OkStatus();
  // An empty message may bring descriptors too.
  UniqueFd fd = got >= 0 ? TakeDescriptor(&header) : UniqueFd();
  if (got <= 0) return OnEnd();
  if (got > static_cast<ssize_t>(sizeof(packet))) {
    return absl::InvalidArgumentError(absl::StrFormat("a message of %d bytes is too long", got));
  }
  return OnPacket(std::span<const std::byte>(packet, static_cast<size_t>(got)), std::move(fd));
}

absl::Status TrainerLink::OnPacket(std::span<const std::byte> packet, UniqueFd fd) {
  if (in_ && IsBell(packet)) {
    in_->OnBell();
    return absl::OkStatus();
  }
  if (in_ && IsDue()) {  // entries that came before it
    held_ = Packet{{packet.begin(), packet.end()}, std::move(fd)};
    return absl::OkStatus();
  }
  ++received_;
  return Parse(packet, std::move(fd));
}

// The trainer's last words may be in the queue. A process that has inherited its memory may go on
// writing, so there is an end to it.
absl::Status TrainerLink::OnEnd() {
  for (uint64_t i = 0; i < ipc::kRingEntries && in_ && !closing_ && IsDue(); ++i) {
    ADDEND_RETURN_IF_ERROR(TakeFromRing());
  }
  return absl::UnavailableError("the trainer's end of the socket closed");
}

absl::Status TrainerLink::Parse(std::span<const std::byte> packet, UniqueFd fd) {
  ipc::Message fixed;
  if (packet.size() < sizeof(fixed)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a message of %d bytes is too short", packet.size()));
  }
  std::memcpy(&fixed, packet.data(), sizeof(fixed));
  if (fixed.magic != ipc::kMagic)
    return absl::InvalidArgumentError("a message has a bad magic number");
  if (fixed.type == ipc::Type::kInit) wants_rings_ = (fixed.flags & ipc::kFlagRing) != 0;
  if (version_ == 0 && protocol::kTrainers.Contains(fixed.version)) version_ = fixed.version;
  if (version_ != 0 && fixed.version != version_) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "a message of version %d on a connection of version %d", fixed.version, version_));
  }
  const size_t dims_bytes = size_t{fixed.dims} * sizeof(int64_t);
  size_t text_bytes_max = ipc::kMaxNameBytes;
  if (fixed.type == ipc::Type::kDeclareAmong) text_bytes_max += kMaxParticipantsBytes;
  if (fixed.dims > ipc::kMaxDims || fixed.text_bytes > text_bytes_max ||
      packet.size() != sizeof(fixed) + dims_bytes + fixed.text_bytes) {
    return absl::InvalidArgumentError("a message's lengths do not add up");
  }
  int64_t dims[ipc::kMaxDims];
  std::memcpy(dims, packet.data() + sizeof(fixed), dims_bytes);
  const auto* const text =
      reinterpret_cast<const char*>(packet.data() + sizeof(fixed) + dims_bytes);
  const ipc::Encoded message{
      .fixed = fixed, .dims = {dims, fixed.dims}, .text = {text, fixed.text_bytes}};
  return events_->OnMessage(this, message, std::move(fd));
}

absl::StatusOr<std::unique_ptr<TrainerPort>> TrainerPort::Listen(EventLoop* loop,
                                                                 const std::string& path,
                                                                 uint32_t mode,
                                                                 TrainerEvents* events) {
  ADDEND_ASSIGN_OR_RETURN(const sockaddr_un address, SocketAddress(path));
  if (SomebodyListens(address)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--socket=%s is in use by another agent: give each agent a path of its own", path));
  }
  ::unlink(path.c_str());
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  // The mask comes first: at no moment does the file have wider permissions.
  const mode_t former = ::umask(0777 & ~mode);
  const int bound = ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  const int error = errno;
  ::umask(former);
  if (bound != 0 || ::listen(fd.get(), 128) != 0) {
    return absl::InvalidArgumentError(absl::StrFormat("cannot listen on --socket=%s: %s", path,
                                                      std::strerror(bound != 0 ? error : errno)));
  }
  std::unique_ptr<TrainerPort> port(new TrainerPort(loop, std::move(fd), path, events));
  ADDEND_RETURN_IF_ERROR(loop->Watch(port->fd_.get(), EPOLLIN, port.get()));
  return port;
}

TrainerPort::TrainerPort(EventLoop* loop, UniqueFd fd, std::string path, TrainerEvents* events)
    : loop_(loop), fd_(std::move(fd)), path_(std::move(path)), events_(events) {}

TrainerPort::~TrainerPort() {
  loop_->Unwatch(fd_.get());
  ::unlink(path_.c_str());
}

void TrainerPort::OnReady(uint32_t) {
  UniqueFd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd.valid() || links_.size() >= kTrainersMax) return;
  links_.push_back(
      std::make_unique<TrainerLink>(loop_, std::move(fd), events_, [this](TrainerLink* gone) {
        links_.remove_if([gone](const auto& link) { return link.get() == gone; });
      }));
  TrainerLink* const link = links_.back().get();
  if (absl::Status status = link->Open(); !status.ok()) link->Close(status);
}

}  // namespace addend
