#include "tests/unit/client/fake_agent.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <utility>

#include "lib/base/participants.h"
#include "lib/base/passed_files.h"
#include "lib/reduce/reduce.h"

namespace addend {
namespace {

void Require(bool condition, const char* what) {
  if (condition) return;
  std::perror(what);
  std::abort();
}

struct Memory {
  int fd = -1;
  std::byte* data = nullptr;
  size_t bytes = 0;

  void Make(size_t size, bool read_only_for_others) {
    bytes = size;
    fd = ::memfd_create("fake-agent", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    Require(fd >= 0 && ::ftruncate(fd, static_cast<off_t>(size)) == 0, "memfd");
    void* const mapped = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    Require(mapped != MAP_FAILED, "mmap");
    data = static_cast<std::byte*>(mapped);
    if (read_only_for_others) {
      Require(::fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) == 0, "F_SEAL_FUTURE_WRITE");
    }
  }
  ~Memory() {
    if (data != nullptr) ::munmap(data, bytes);
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

struct FakeAgent::Peer {
  int fd = -1;
  bool joined = false;
  ipc::Message init;
};

// A declared tensor: a contribution of each rank, and the result.
struct FakeAgent::Tensor {
  struct Rank {
    Peer* peer = nullptr;
    Memory contribution;
    bool pushed = false;
    bool empty = false;
  };
  uint32_t number = 0;
  std::string name;
  std::vector<int64_t> shape;
  DType dtype{};
  ReduceOp op{};
  Participants participants;
  size_t elements = 1;
  uint64_t round = 1;
  Memory results;
  std::map<int32_t, Rank> ranks;
  uint32_t error_code = 0;
  std::string error;
};

FakeAgent::FakeAgent(std::string socket, int size) : socket_(std::move(socket)), size_(size) {
  ::unlink(socket_.c_str());
  listen_fd_ = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  Require(socket_.size() < sizeof(address.sun_path), "path");
  std::memcpy(address.sun_path, socket_.data(), socket_.size());
  Require(::bind(listen_fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0, "bind");
  Require(::listen(listen_fd_, 64) == 0, "listen");
  wake_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  thread_ = std::thread([this] { Run(); });
}

FakeAgent::~FakeAgent() {
  Post([this] { stop_ = true; });
  thread_.join();
  while (!peers_.empty()) Close(peers_.begin()->second.get());
  ::close(listen_fd_);
  ::close(wake_fd_);
  ::unlink(socket_.c_str());
}

void FakeAgent::Post(std::function<void()> action) {
  std::unique_lock<std::mutex> lock(mu_);
  posted_.push_back(std::move(action));
  const uint64_t ticket = ++posts_;
  const uint64_t one = 1;
  Require(::write(wake_fd_, &one, sizeof(one)) == sizeof(one), "eventfd");
  ran_.wait(lock, [&] { return posts_run_ >= ticket; });
}

void FakeAgent::RefuseInit(uint32_t code, std::string text) {
  Post([=, this] {
    refusal_code_ = code;
    refusal_ = text;
  });
}

void FakeAgent::SendProgress(std::string text) {
  Post([=, this] {
    ipc::Message message;
    message.type = ipc::Type::kProgress;
    for (const auto& [fd, peer] : peers_) Send(*peer, message, text, {});
  });
}

void FakeAgent::SendRaw(std::string bytes) {
  Post([=, this] {
    for (const auto& [fd, peer] : peers_) ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  });
}

void FakeAgent::Fail(uint32_t code, std::string text) {
  Post([=, this] {
    ipc::Message message;
    message.type = ipc::Type::kFailure;
    message.code = code;
    for (const auto& [fd, peer] : peers_) Send(*peer, message, text, {});
    while (!peers_.empty()) Close(peers_.begin()->second.get());
  });
}

void FakeAgent::CloseAll() {
  Post([this] {
    while (!peers_.empty()) Close(peers_.begin()->second.get());
  });
}

void FakeAgent::HoldResults(bool hold) {
  Post([=, this] {
    hold_ = hold;
    if (hold) return;
    const std::vector<Tensor*> held = std::exchange(held_, {});
    for (Tensor* tensor : held) FinishRound(tensor);
  });
}

void FakeAgent::FailNextRound(std::string name, uint32_t code, std::string text) {
  Post([=, this] {
    for (const auto& [number, tensor] : tensors_) {
      if (tensor->name != name) continue;
      tensor->error_code = code;
      tensor->error = text;
    }
  });
}

FakeAgent::Counts FakeAgent::counts() {
  const std::lock_guard<std::mutex> lock(mu_);
  return counts_;
}

void FakeAgent::RunPosted() {
  uint64_t count;
  while (::read(wake_fd_, &count, sizeof(count)) > 0) {
  }
  std::vector<std::function<void()>> actions;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    actions.swap(posted_);
  }
  for (const auto& action : actions) action();
  const std::lock_guard<std::mutex> lock(mu_);
  posts_run_ += actions.size();
  ran_.notify_all();
}

void FakeAgent::Run() {
  while (!stop_) {
    std::vector<pollfd> polled = {{listen_fd_, POLLIN, 0}, {wake_fd_, POLLIN, 0}};
    for (const auto& [fd, peer] : peers_) polled.push_back({fd, POLLIN, 0});
    ::poll(polled.data(), polled.size(), -1);
    // Messages that came before an action take effect before it.
    for (size_t i = 2; i < polled.size(); ++i) {
      const auto found = peers_.find(polled[i].fd);
      if (polled[i].revents != 0 && found != peers_.end()) Receive(found->second.get());
    }
    if (polled[0].revents != 0) Accept();
    if (polled[1].revents != 0) RunPosted();
  }
}

void FakeAgent::Accept() {
  const int fd = ::accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) return;
  auto peer = std::make_unique<Peer>();
  peer->fd = fd;
  peers_[fd] = std::move(peer);
}

void FakeAgent::Receive(Peer* peer) {
  char buffer[ipc::kMaxMessageBytes];
  const ssize_t received = ::recv(peer->fd, buffer, sizeof(buffer), MSG_DONTWAIT);
  if (received <= 0) {
    if (received == 0 || errno == ECONNRESET) {
      const std::lock_guard<std::mutex> lock(mu_);
      if (peer->joined) ++counts_.died;
    }
    Close(peer);
    return;
  }
  ipc::Message message;
  Require(static_cast<size_t>(received) >= sizeof(message), "message length");
  std::memcpy(&message, buffer, sizeof(message));
  Handle(peer, message, buffer + sizeof(message));
}

void FakeAgent::Handle(Peer* peer, const ipc::Message& message, const char* rest) {
  Require(message.magic == ipc::kMagic && message.version == ipc::kVersion, "magic");
  switch (message.type) {
    case ipc::Type::kInit:
      return OnInit(peer, message);
    case ipc::Type::kDeclare:
    case ipc::Type::kDeclareAmong:
      return OnDeclare(peer, message, rest);
    case ipc::Type::kPush:
      return OnPush(peer, message);
    case ipc::Type::kUndeclare:
      return OnUndeclare(peer, message);
    case ipc::Type::kShutdown: {
      {
        const std::lock_guard<std::mutex> lock(mu_);
        ++counts_.shut_down;
      }
      return Close(peer);
    }
    default:
      Require(false, "message type");
  }
}

void FakeAgent::Close(Peer* peer) {
  for (const auto& [number, tensor] : tensors_) {
    for (auto& [rank, state] : tensor->ranks) {
      if (state.peer == peer) state.peer = nullptr;
    }
  }
  {
    const std::lock_guard<std::mutex> lock(mu_);
    if (peer->joined) --counts_.connected;
  }
  const int fd = peer->fd;
  ::close(fd);
  peers_.erase(fd);
}

void FakeAgent::Send(const Peer& peer, ipc::Message message, std::string_view text,
                     const std::vector<int>& fds) {
  message.text_bytes = static_cast<uint32_t>(text.size());
  std::string bytes(reinterpret_cast<const char*>(&message), sizeof(message));
  bytes.append(text);
  iovec part = {bytes.data(), bytes.size()};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  PassedFiles<4> files;
  if (!fds.empty()) files.Send(fds, &header);
  ::sendmsg(peer.fd, &header, MSG_NOSIGNAL);
}

void FakeAgent::OnInit(Peer* peer, const ipc::Message& message) {
  if (refusal_code_ != 0) {
    ipc::Message reply;
    reply.type = ipc::Type::kInitReply;
    reply.code = refusal_code_;
    Send(*peer, reply, refusal_, {});
    return Close(peer);
  }
  peer->init = message;
  peer->joined = true;
  int joined = 0;
  for (const auto& [fd, other] : peers_) joined += other->joined ? 1 : 0;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    ++counts_.connected;
  }
  if (joined < size_) return;
  for (const auto& [fd, other] : peers_) {
    if (!other->joined) continue;
    ipc::Message reply = other->init;
    reply.type = ipc::Type::kInitReply;
    reply.node_rank = other->init.rank / other->init.local_size;
    reply.num_nodes = other->init.size / other->init.local_size;
    Send(*other, reply, {}, {});
  }
}

void FakeAgent::OnDeclare(Peer* peer, const ipc::Message& message, const char* rest) {
  std::vector<int64_t> shape(message.dims);
  if (!shape.empty()) std::memcpy(shape.data(), rest, message.dims * sizeof(int64_t));
  const char* const text = rest + message.dims * sizeof(int64_t);
  const size_t among = message.type == ipc::Type::kDeclareAmong ? message.bytes : 0;
  const std::string name(text, message.text_bytes - among);
  const auto participants =
      Participants::FromBits(std::string(text + name.size(), among), static_cast<uint64_t>(size_));
  Require(participants.has_value(), "participants");
  ipc::Message reply;
  reply.type = ipc::Type::kDeclared;
  reply.request = message.request;

  Tensor* tensor = nullptr;
  for (const auto& [number, known] : tensors_) {
    if (known->name == name && !known->ranks.contains(peer->init.rank)) tensor = known.get();
  }
  const auto dtype = static_cast<DType>(message.dtype);
  const auto op = static_cast<ReduceOp>(message.op);
  if (tensor != nullptr && (tensor->shape != shape || tensor->dtype != dtype || tensor->op != op ||
                            tensor->participants != *participants)) {
    reply.code = 65;
    return Send(*peer, reply, "tensor \"" + name + "\" differs between two ranks", {});
  }
  if (tensor == nullptr) {
    auto made = std::make_unique<Tensor>();
    tensor = made.get();
    tensor->number = ++last_number_;
    tensor->name = name;
    tensor->shape = shape;
    tensor->dtype = dtype;
    tensor->op = op;
    tensor->participants = *participants;
    for (const int64_t dimension : shape) tensor->elements *= static_cast<size_t>(dimension);
    tensor->results.Make(2 * ipc::SlotBytes(tensor->elements * addend::SizeOf(dtype)), true);
    tensors_[tensor->number] = std::move(made);
    const std::lock_guard<std::mutex> lock(mu_);
    ++counts_.tensors;
  }
  Tensor::Rank& rank = tensor->ranks[peer->init.rank];
  rank.peer = peer;
  rank.contribution.Make(ipc::SlotBytes(tensor->elements * addend::SizeOf(dtype)), false);
  reply.tensor = tensor->number;
  Send(*peer, reply, {}, {rank.contribution.fd, tensor->results.fd});
}

// The ranks that take part in it.
int FakeAgent::SizeOf(const Tensor& tensor) const {
  return static_cast<int>(tensor.participants.CountIn(0, static_cast<uint64_t>(size_)));
}

void FakeAgent::OnPush(Peer* peer, const ipc::Message& message) {
  const auto found = tensors_.find(message.tensor);
  Require(found != tensors_.end(), "push of an unknown tensor");
  Tensor* const tensor = found->second.get();
  Tensor::Rank& rank = tensor->ranks[peer->init.rank];
  Require(!rank.pushed && message.round == tensor->round, "round");
  rank.pushed = true;
  rank.empty = (message.flags & ipc::kFlagEmpty) != 0;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    counts_.pushed.push_back(tensor->name);
    counts_.priorities.push_back(message.priority);
  }
  int pushed = 0;
  for (const auto& [number, state] : tensor->ranks) pushed += state.pushed ? 1 : 0;
  if (pushed < SizeOf(*tensor)) return;
  if (hold_) {
    held_.push_back(tensor);
  } else {
    FinishRound(tensor);
  }
}

void FakeAgent::FinishRound(Tensor* tensor) {
  const size_t bytes = tensor->elements * addend::SizeOf(tensor->dtype);
  std::byte* const out = tensor->results.data + (tensor->round & 1) * ipc::SlotBytes(bytes);
  std::vector<const void*> inputs;
  for (auto& [number, state] : tensor->ranks) {
    if (!state.empty) inputs.push_back(state.contribution.data);
    state.pushed = false;
  }
  if (inputs.empty()) {
    std::memset(out, 0, bytes);
  } else if (tensor->op == ReduceOp::kBroadcast) {
    std::memcpy(out, inputs.front(), bytes);
  } else {
    Reduce(tensor->dtype, tensor->op, out, inputs, tensor->elements,
           static_cast<uint32_t>(SizeOf(*tensor)));
  }
  ipc::Message reply;
  reply.type = ipc::Type::kResult;
  reply.tensor = tensor->number;
  reply.round = tensor->round++;
  reply.code = std::exchange(tensor->error_code, 0);
  for (const auto& [number, state] : tensor->ranks) {
    if (state.peer != nullptr) Send(*state.peer, reply, reply.code == 0 ? "" : tensor->error, {});
  }
}

void FakeAgent::OnUndeclare(Peer* peer, const ipc::Message& message) {
  const auto found = tensors_.find(message.tensor);
  Require(found != tensors_.end(), "undeclaration of an unknown tensor");
  Tensor::Rank& rank = found->second->ranks[peer->init.rank];
  Require(!rank.pushed, "undeclaration of a pending tensor");
  rank.peer = nullptr;
  const auto& ranks = found->second->ranks;
  const bool used = std::any_of(ranks.begin(), ranks.end(),
                                [](const auto& entry) { return entry.second.peer != nullptr; });
  if (used || static_cast<int>(ranks.size()) < SizeOf(*found->second)) return;
  tensors_.erase(found);
  const std::lock_guard<std::mutex> lock(mu_);
  --counts_.tensors;
}

}  // namespace addend
