// Everything that a node's trainers can do on the agent's socket: send any messages in any order,
// pass descriptors, write to shared memory and to the queues there, and leave. The agent survives,
// trainers can neither resize its shared memory nor write results, and sums of the trainers'
// contributions are right.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "lib/base/passed_files.h"
#include "lib/client/ipc.h"
#include "lib/client/ring.h"
#include "tests/fuzz/check.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/one_node.h"

namespace addend::fuzz {
namespace {

constexpr const char* kGpus[] = {"0000:18:00.0", "0000:19:00.0", "00000000:3C:00.0", "none", ""};
constexpr const char* kNames[] = {"a", "b", "c", "\xff", ""};

std::string SocketPath() {
  static const std::string path = absl::StrFormat("/tmp/addend-fuzz-%d.sock", ::getpid());
  return path;
}

// A trainer's view of a tensor that it has declared.
struct Declared {
  uint64_t request = 0;
  ipc::Message said;
  uint64_t elements = 0;
  uint64_t round = 0;  // last pushed round
  uint64_t done = 0;   // round of the last result
  UniqueFd contribution;
  UniqueFd results;
};

// The trainer's ends of its queues.
class Rings {
 public:
  explicit Rings(const UniqueFd& fd)
      : memory_(static_cast<ipc::RingsMemory*>(::mmap(
            nullptr, sizeof(ipc::RingsMemory), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0))),
        in(&memory_->to_trainer),
        out(&memory_->to_agent) {
    FUZZ_CHECK(memory_ != MAP_FAILED, "the queues are the trainer's to map");
    FUZZ_CHECK(::ftruncate(fd.get(), 0) != 0, "nobody shrinks what is shared");
  }
  ~Rings() { ::munmap(memory_, sizeof(ipc::RingsMemory)); }
  Rings(const Rings&) = delete;
  Rings& operator=(const Rings&) = delete;
  char* bytes() { return reinterpret_cast<char*>(memory_); }

 private:
  ipc::RingsMemory* const memory_;

 public:
  ipc::RingReader in;
  ipc::RingWriter out;
};

class Trainer {
 public:
  Trainer() : fd_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    std::memcpy(address.sun_path, SocketPath().data(), SocketPath().size());
    int connected = -1;
    do {  // repeated while the agent's accept queue is full
      connected =
          ::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    } while (connected != 0 && errno == EAGAIN);
    FUZZ_CHECK(connected == 0, "the agent listens");
  }

  void Send(std::string_view packet, const std::vector<int>& fds = {}) {
    iovec part{const_cast<char*>(packet.data()), packet.size()};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    PassedFiles<8> files;
    if (!fds.empty()) files.Send(fds, &header);
    ::sendmsg(fd_.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);  // the agent may not read
  }
  void Send(ipc::Message message, std::string_view text = {}, const std::vector<int64_t>& dims = {},
            const std::vector<int>& fds = {}) {
    message.dims = static_cast<uint32_t>(dims.size());
    message.text_bytes = static_cast<uint32_t>(text.size());
    std::string packet(reinterpret_cast<const char*>(&message), sizeof(message));
    packet.append(reinterpret_cast<const char*>(dims.data()), dims.size() * sizeof(dims[0]));
    Send(packet.append(text), fds);
    ++sent_;
  }
  // By the queue, if it has room; `after` more messages of the socket than have been sent.
  void SendByRing(const ipc::Message& message, uint64_t after) {
    if (!rings || !rings->out.Write(message, sent_ + after)) return Send(message);
    ipc::Message bell;
    bell.type = ipc::Type::kBell;
    if (rings->out.MustRing()) Send({reinterpret_cast<const char*>(&bell), sizeof(bell)});
  }
  void UseRings(const UniqueFd& fd) {
    rings = std::make_unique<Rings>(fd);
    sent_ = 0;
  }
  // The next message, with its descriptors.
  std::optional<ipc::Message> Receive(std::array<UniqueFd, 2>* fds) {
    char packet[ipc::kMaxMessageBytes];
    iovec part{packet, sizeof(packet)};
    alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))];
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    const ssize_t got = ::recvmsg(fd_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got <= 0) return std::nullopt;
    ipc::Message message;
    FUZZ_CHECK(got >= static_cast<ssize_t>(sizeof(message)), "an agent says whole messages");
    std::memcpy(&message, packet, sizeof(message));
    FUZZ_CHECK(message.magic == ipc::kMagic &&
                   got == static_cast<ssize_t>(sizeof(message) + message.text_bytes),
               "an agent says whole messages");
    if (const cmsghdr* const rights = CMSG_FIRSTHDR(&header); rights != nullptr) {
      const size_t count = (rights->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(rights) + i * sizeof(int), sizeof(int));
        UniqueFd received(fd);
        if (i < fds->size()) (*fds)[i] = std::move(received);
      }
    }
    return message;
  }

  int32_t rank = 0;
  std::map<uint32_t, Declared> tensors;  // by tensor number
  std::map<uint64_t, Declared> asked;    // by request
  std::unique_ptr<Rings> rings;

 private:
  const UniqueFd fd_;
  uint64_t sent_ = 0;
};

class Run {
 public:
  Run(OneNode* node, Input* input) : node_(*node), input_(*input) { node_.BeginGeneration(); }
  void Play();

 private:
  void Act(Trainer* trainer);
  void Init(Trainer* trainer, bool valid);
  void Declare(Trainer* trainer);
  void Push(Trainer* trainer);
  void SayAnything(Trainer* trainer);
  void SayBytes(Trainer* trainer);
  void Meddle(Trainer* trainer);
  uint32_t AnyTensor(const Trainer& trainer);

  void Settle();
  void Listen(Trainer* trainer);
  void CheckResult(Trainer* trainer, const ipc::Message& result);

  OneNode& node_;
  Input& input_;
  std::vector<std::unique_ptr<Trainer>> trainers_;
  uint64_t requests_ = 0;
  bool trusted_ = true;  // the pushed values are known
  // By tensor number and round, then by local rank: the value of all elements; nullopt: no data.
  std::map<std::pair<uint32_t, uint64_t>, std::map<int32_t, std::optional<float>>> pushed_;
};

void Run::Init(Trainer* trainer, bool valid) {
  ipc::Message init;
  init.type = ipc::Type::kInit;
  init.rank = init.local_rank = trainer->rank;
  init.size = init.local_size = OneNode::kLocalSize;
  if (input_.Flag()) init.flags = ipc::kFlagRing;
  if (!valid) {
    init.version = input_.Number<uint16_t>(6);
    init.local_rank = static_cast<int32_t>(input_.Number<uint32_t>(4));
    init.local_size = static_cast<int32_t>(input_.Number<uint32_t>(4));
    init.size = static_cast<int32_t>(input_.Number<uint32_t>(4));
  }
  trainer->Send(init, valid || input_.Flag() ? "" : "job");
}

uint32_t Run::AnyTensor(const Trainer& trainer) {
  const auto which = input_.Take();
  if (trainer.tensors.empty() || which > 240) return input_.Number<uint32_t>(4);
  return std::next(trainer.tensors.begin(), which % trainer.tensors.size())->first;
}

void Run::Declare(Trainer* trainer) {
  Declared declared;
  ipc::Message& message = declared.said;
  message.type = ipc::Type::kDeclare;
  message.request = ++requests_;
  message.dtype = input_.Number<uint8_t>(1);
  message.op = input_.Number<uint8_t>(1);
  std::vector<int64_t> dims(input_.Number<uint8_t>(3) % 70);
  declared.elements = 1;
  for (int64_t& dim : dims) {
    dim = input_.Take() < 250 ? static_cast<int64_t>(input_.Take<uint16_t>() % 1500)
                              : input_.Take<int64_t>();
    declared.elements *= static_cast<uint64_t>(dim);
  }
  trainer->Send(message, kNames[input_.Number<uint8_t>(3) % std::size(kNames)], dims);
  trainer->asked[requests_] = std::move(declared);
}

// Fills the contribution with a single value and pushes it.
void Run::Push(Trainer* trainer) {
  const uint32_t number = AnyTensor(*trainer);
  ipc::Message push;
  push.type = ipc::Type::kPush;
  push.tensor = number;
  push.flags = input_.Number<uint16_t>(1);
  push.request = input_.Take();
  push.priority = input_.Take<int8_t>();
  push.round = input_.Number<uint64_t>(1);
  const auto found = trainer->tensors.find(number);
  if (found == trainer->tensors.end()) return trainer->Send(push);
  Declared& declared = found->second;
  // While the previous round is under way, writing changes the values being summed.
  if (declared.round != declared.done) trusted_ = false;
  if (push.round == 0) push.round = ++declared.round;
  const auto value = static_cast<float>(input_.Take<int8_t>());
  const uint64_t bytes = declared.elements * sizeof(value);
  if (declared.said.dtype == 0 && bytes <= OneNode::kTensorBytesMost) {
    const std::vector<float> values(declared.elements, value);
    FUZZ_CHECK(::pwrite(declared.contribution.get(), values.data(), bytes, 0) ==
                   static_cast<ssize_t>(bytes),
               "a contribution is the trainer's to write");
  }
  auto& noted = pushed_[{number, push.round}];
  if (noted.contains(trainer->rank) || (push.flags & ipc::kFlagDevice)) trusted_ = false;
  noted[trainer->rank] = push.flags & ipc::kFlagEmpty ? std::nullopt : std::optional<float>(value);
  const uint64_t after = trainer->rings ? input_.Number<uint8_t>(1) : 0;
  if (after > 0) trusted_ = false;  // it may never be delivered
  trainer->SendByRing(push, after);
}

// Sends any message, mostly about existing tensors.
void Run::SayAnything(Trainer* trainer) {
  ipc::Message message;
  message.type = static_cast<ipc::Type>(input_.Number<uint16_t>(25));
  if (message.type == ipc::Type::kPush) return Push(trainer);
  message.tensor = AnyTensor(*trainer);
  message.flags = input_.Number<uint16_t>(32);
  message.round = 1 + input_.Number<uint64_t>(3);
  message.offset = input_.Number<uint64_t>(64);
  message.bytes = input_.Flag() ? 4 * input_.Number<uint64_t>(200) : input_.Take<uint16_t>();
  if (const auto it = trainer->tensors.find(message.tensor);
      it != trainer->tensors.end() && input_.Flag()) {
    message.round = it->second.round;
    message.bytes = it->second.elements * 4;
  }
  std::string text;
  if (message.type == ipc::Type::kDevice) text = kGpus[input_.Below(std::size(kGpus))];
  if (message.type == ipc::Type::kGroupId) text.assign(input_.Flag() ? 128 : input_.Take(), 'g');
  if (message.type == ipc::Type::kDeviceFailed) text = "it fell off the bus";
  std::vector<UniqueFd> files(input_.Number<uint8_t>(1) % 7);
  std::vector<int> fds;
  for (UniqueFd& file : files) {
    file = UniqueFd(::memfd_create("anything", MFD_CLOEXEC));
    fds.push_back(file.get());
  }
  if (message.type == ipc::Type::kDirect && fds.empty() && !trainer->tensors.empty()) {
    fds.push_back(trainer->tensors.begin()->second.contribution.get());
  }
  trainer->Send(message, text, {}, fds);
}

void Run::SayBytes(Trainer* trainer) {
  ipc::Message message;
  std::string packet(reinterpret_cast<const char*>(&message), sizeof(message));
  const std::string_view bytes = input_.Bytes(input_.Take());
  if (input_.Flag()) packet.clear();
  const size_t at = packet.empty() ? 0 : input_.Below(static_cast<uint32_t>(packet.size()));
  packet.replace(at, std::min(bytes.size(), packet.size() - at), bytes);
  if (input_.Take() == 0) packet.resize(ipc::kMaxMessageBytes + 1);
  trainer->Send(packet);
}

// Writes to the shared memory.
void Run::Meddle(Trainer* trainer) {
  if (trainer->rings && input_.Flag()) {
    const std::string_view bytes = input_.Bytes(input_.Take());
    const size_t room = sizeof(ipc::RingsMemory) - bytes.size();
    std::memcpy(trainer->rings->bytes() + input_.Below(static_cast<uint32_t>(room)), bytes.data(),
                bytes.size());
    trusted_ = false;
  }
  const auto found = trainer->tensors.find(AnyTensor(*trainer));
  if (found == trainer->tensors.end()) return;
  const Declared& declared = found->second;
  for (const UniqueFd* fd : {&declared.contribution, &declared.results}) {
    if (!fd->valid()) continue;
    FUZZ_CHECK(::ftruncate(fd->get(), 0) != 0, "nobody shrinks what is shared");
    FUZZ_CHECK(::ftruncate(fd->get(), 1 << 30) != 0, "nobody grows what is shared");
  }
  if (declared.results.valid()) {
    FUZZ_CHECK(::pwrite(declared.results.get(), "x", 1, 0) < 0, "nobody else writes results");
    void* const mapped =
        ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, declared.results.get(), 0);
    FUZZ_CHECK(mapped == MAP_FAILED, "nobody else writes results");
  }
  const std::string_view bytes = input_.Bytes(input_.Take());
  const auto offset = static_cast<off_t>(input_.Take<uint16_t>());
  if (::pwrite(declared.contribution.get(), bytes.data(), bytes.size(), offset) > 0) {
    trusted_ = false;
  }
}

void Run::Act(Trainer* trainer) {
  switch (input_.Take() % 16) {
    case 0:
      return SayBytes(trainer);
    case 1:
      return Meddle(trainer);
    case 2:
    case 3:
      return SayAnything(trainer);
    case 4:
      return Init(trainer, input_.Flag());
    case 5:
    case 6:
      return Declare(trainer);
    case 7: {
      auto& one = trainers_[input_.Below(static_cast<uint32_t>(trainers_.size()))];
      const int32_t rank = one->rank;
      trusted_ = false;
      one = std::make_unique<Trainer>();
      one->rank = rank;
      return;
    }
    case 8: {
      ipc::Message message;
      message.type = ipc::Type::kUndeclare;
      message.tensor = AnyTensor(*trainer);
      trainer->tensors.erase(message.tensor);
      return trainer->Send(message);
    }
    case 9:
    case 10:
      return Settle();
    default:
      return Push(trainer);
  }
}

void Run::Settle() {
  node_.Settle();
  for (auto& trainer : trainers_) Listen(trainer.get());
}

void Run::Listen(Trainer* trainer) {
  std::array<UniqueFd, 2> fds;
  std::vector<ipc::Message> results;
  while (const auto message = trainer->Receive(&fds)) {
    if (message->type == ipc::Type::kResult && message->code == 0) results.push_back(*message);
    if (message->type == ipc::Type::kInitReply && fds[0].valid()) trainer->UseRings(fds[0]);
    if (message->type != ipc::Type::kDeclared || message->code != 0) continue;
    auto asked = trainer->asked.extract(message->request);
    if (asked.empty()) continue;
    FUZZ_CHECK(fds[0].valid() && fds[1].valid(), "both segments come with the answer");
    asked.mapped().contribution = std::move(fds[0]);
    asked.mapped().results = std::move(fds[1]);
    trainer->tensors[message->tensor] = std::move(asked.mapped());
  }
  const auto ready = ipc::RingReader::State::kReady;
  for (size_t i = 0; i < ipc::kRingEntries && trainer->rings; ++i) {
    if (trainer->rings->in.Look(~uint64_t{0}) != ready) break;
    const ipc::Message message = trainer->rings->in.Take();
    if (message.type == ipc::Type::kResult && message.code == 0) results.push_back(message);
  }
  for (const ipc::Message& result : results) {
    const auto of = trainer->tensors.find(result.tensor);
    if (of != trainer->tensors.end()) of->second.done = std::max(of->second.done, result.round);
    CheckResult(trainer, result);
  }
}

// Checks the latest round of a sum of floats, while its result is available.
void Run::CheckResult(Trainer* trainer, const ipc::Message& result) {
  const auto found = trainer->tensors.find(result.tensor);
  if (!trusted_ || found == trainer->tensors.end()) return;
  const Declared& declared = found->second;
  if (declared.said.dtype != 0 || declared.said.op != 0 || result.round != declared.round) return;
  const auto& pushed = pushed_[{result.tensor, result.round}];
  FUZZ_CHECK(pushed.size() == OneNode::kLocalSize, "a result when all have pushed");
  float sum = 0;
  for (const auto& [rank, value] : pushed) sum += value.value_or(0);
  const uint64_t bytes = declared.elements * sizeof(sum);
  std::vector<float> values(declared.elements);
  const size_t slot = (result.round & 1) * ipc::SlotBytes(bytes);
  FUZZ_CHECK(::pread(declared.results.get(), values.data(), bytes, static_cast<off_t>(slot)) ==
                 static_cast<ssize_t>(bytes),
             "a result is the trainer's to read");
  for (const float value : values) FUZZ_CHECK(value == sum, "the sum of what was pushed");
}

void Run::Play() {
  const bool strangers = input_.Take() % 8 == 0;
  for (int32_t rank = 0; rank < static_cast<int32_t>(OneNode::kLocalSize); ++rank) {
    trainers_.push_back(std::make_unique<Trainer>());
    trainers_.back()->rank = rank;
    if (!strangers) Init(trainers_.back().get(), /*valid=*/true);
  }
  node_.Settle();
  for (int i = 0; i < 64 && !input_.empty(); ++i) {
    Act(trainers_[input_.Below(static_cast<uint32_t>(trainers_.size()))].get());
  }
  Settle();
  v1::HeartbeatRequest beat;
  node_.agent()->FillBeat(&beat);
  node_.agent()->Numbers();
}

}  // namespace
}  // namespace addend::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace addend::fuzz;
  // Destroyed by exit(), before older objects: its threads write to the log of start.cc.
  static OneNode node(SocketPath());
  Input input(data, size);
  Run(&node, &input).Play();
  return 0;
}
