// Everything that strangers and nodes can send to a shard, on several links, mixed with the
// scheduler's orders. No input crashes the shard or takes more memory than its limit; a stranger
// changes nothing; and with any frames from node 1, the sums that node 0 receives are sums of its
// own and node 1's contributions.
#include <algorithm>
#include <array>
#include <cmath>
#include <latch>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lib/auth/link_proof.h"
#include "lib/memory/arena.h"
#include "lib/summation/engine.h"
#include "lib/wire/crc32c.h"
#include "lib/wire/stamp.h"
#include "tests/fuzz/check.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/peer.h"

namespace addend::fuzz {
namespace {

constexpr char kKey[] = "the key of the job";
constexpr int64_t kExpires = 4'102'444'800;  // in 2100
constexpr uint64_t kMemoryLimit = 64 << 10;
constexpr PartitionId kWatched(TensorId(1), 0);  // the partition whose sums are checked
constexpr uint32_t kNodes = 2;

const std::vector<PartitionSpec>& Specs() {
  const auto spec = [](uint32_t tensor, uint32_t index, DType dtype, ReduceOp op, uint64_t elements,
                       uint64_t version = 0, bool handed_over = false) {
    return PartitionSpec{.id = PartitionId(TensorId(tensor), index),
                         .name = "tensor",
                         .dtype = dtype,
                         .op = op,
                         .elements = elements,
                         .nodes = kNodes,
                         .lost = {},
                         .aborted = false,
                         .version = PlanVersion(version),
                         .handed_over = handed_over};
  };
  static const std::vector<PartitionSpec> specs = {
      spec(1, 0, DType::kFloat32, ReduceOp::kSum, 5),
      spec(1, 1, DType::kFloat32, ReduceOp::kSum, 5000),
      spec(2, 0, DType::kFloat16, ReduceOp::kAverage, 7),
      spec(2, 1, DType::kInt64, ReduceOp::kMax, 3),
      spec(3, 0, DType::kFloat32, ReduceOp::kBroadcast, 4),
      spec(4, 0, DType::kFloat32, ReduceOp::kAccumulate, 6),
      spec(5, 0, DType::kFloat32, ReduceOp::kSum, 4, /*version=*/3),
      spec(5, 1, DType::kFloat64, ReduceOp::kMin, 4, /*version=*/3, /*handed_over=*/true),
      spec(6, 0, DType::kBFloat16, ReduceOp::kAccumulate, 6, /*version=*/3),
  };
  return specs;
}

// The shard, which lives as long as the process: every input has a job of its own.
struct Server {
  Server() : shard(*Shard::Create(ThisMachine(), 0, &budget, &identity, {}, nullptr)) {}
  MemoryBudget budget{kMemoryLimit};
  ServerIdentity identity{.id = 1, .incarnation = Incarnation(9)};
  std::unique_ptr<Shard> shard;
};

class Run {
 public:
  Run(Server* server, Input* input)
      : server_(*server), shard_(server->shard.get()), input_(*input), job_(NextJob()) {
    Begin();
  }
  ~Run();
  void Play();

 private:
  static JobId NextJob() {
    static uint64_t last = 0;
    return JobId(++last);
  }
  void Begin();
  void Reserve(const PartitionSpec& spec);
  JobSpec Job() const;

  // ---- the honest nodes ----
  bool Admit(Peer* peer, uint32_t node);
  void ContributeHonestly(uint32_t node);
  void SendHonestly(uint32_t node, uint64_t round);
  // Returns false if the honest nodes have sent an answer.
  bool ReadHonestly();
  void CheckResult(uint32_t node, const Peer::Frame& frame);

  // ---- the attackers ----
  void Attack();
  void Order();
  void WriteFrame(Peer* peer, bool whole);
  void WriteBundle(Peer* peer);
  FrameHeader AnyHeader(std::string* payload);
  void NoteContribution(const FrameHeader& header, std::string_view payload);
  void Settle();

  Server& server_;
  Shard* const shard_;
  Input& input_;
  const JobId job_;
  uint64_t reserved_ = 0;
  JobSpec spec_;
  const std::shared_ptr<JobMemory> memory_ = std::make_shared<JobMemory>(&server_.budget, 0);

  bool strangers_ = true;                     // no attacker's link has been a node's
  bool trusted_ = true;                       // no event so far can explain another sum
  std::unique_ptr<Peer> honest_[kNodes];      // null: an attacker has taken the node's link
  std::array<uint64_t, kNodes> round_ = {};   // last pushed round
  std::array<uint64_t, kNodes> result_ = {};  // round of the last result
  std::array<std::map<uint64_t, float>, kNodes> pushed_;
  std::map<uint64_t, std::set<std::optional<float>>> possible_;  // node 1's possible values, by
                                                                 // round
  std::vector<std::unique_ptr<Peer>> attackers_;
  size_t current_ = 0;
  bool reads_ = true;  // the attackers' links read the frames sent to them
};

void Run::Begin() {
  spec_ = {.id = job_,
           .generation = Generation(1),
           .plan_version = PlanVersion(3),
           .key = kKey,
           .num_nodes = kNodes};
  shard_->SetJob(spec_, memory_);
  for (const PartitionSpec& spec : Specs()) Reserve(spec);
}

// As the engine does.
void Run::Reserve(const PartitionSpec& spec) {
  if (spec.op == ReduceOp::kAccumulate) {
    return shard_->AddPartition(job_, std::make_shared<LatestPartition>(spec));
  }
  const uint64_t slot = spec.elements * AccumulatorSizeOf(spec.dtype);
  FUZZ_CHECK(memory_->Reserve("tensor", 2 * slot).ok(), "the limit is enough for all");
  reserved_ += 2 * slot;
  const std::shared_ptr<Arena> arena = *Arena::Create(2 * slot);
  PartitionMemory memory;
  for (int i = 0; i < 2; ++i) {
    memory.accumulator[i] = memory.result[i] = arena->memory().data() + i * slot;
  }
  memory.keep_alive = arena;
  shard_->AddPartition(job_, std::make_shared<Partition>(spec, std::move(memory)));
}

// An input leaves nothing behind.
Run::~Run() {
  attackers_.clear();
  for (auto& peer : honest_) peer.reset();
  LinkCounts links;
  shard_->AddLinks(&links);
  FUZZ_CHECK(links.by_transport.empty(), "links end with their peers");
  shard_->DropJob(job_, absl::CancelledError("the input has ended"));
  memory_->Release(reserved_);
}

// Makes a link a node's.
bool Run::Admit(Peer* peer, uint32_t node) {
  FrameHeader hello;
  hello.type = FrameType::kHello;
  hello.job = job_;
  hello.generation = Generation(1);
  hello.sender = node;
  hello.payload_bytes = auth::kOpeningBytes;
  peer->Write(hello, auth::TextOf(auth::Encode({.expires_unix_s = kExpires})));
  auto frames = peer->Read();
  if (frames.empty() || frames.back().header.type != FrameType::kChallenge) return false;
  auth::LinkTerms terms{.claim = {.job = job_,
                                  .generation = Generation(1),
                                  .node = NodeId(node),
                                  .expires_unix_s = kExpires},
                        .server = frames.back().header.incarnation};
  std::copy_n(frames.back().payload.begin(), auth::kSecretBytes, terms.server_nonce.begin());
  const auth::Secret token = auth::TokenSecret(auth::BytesOf(kKey), terms.claim);
  FrameHeader proof = hello;
  proof.type = FrameType::kProof;
  proof.payload_bytes = auth::kSecretBytes;
  peer->Write(proof, auth::TextOf(auth::ProofOf(auth::Side::kNode, token, terms)));
  frames = peer->Read();
  return !frames.empty() && frames.back().header.type == FrameType::kHello;
}

void Run::Settle() {
  do {
    FUZZ_CHECK(server_.budget.used() <= kMemoryLimit, "memory stays below its limit");
    for (auto& peer : attackers_) peer->EndTurn();
    for (auto& peer : honest_) {
      if (peer != nullptr) peer->EndTurn();
    }
    if (reads_) attackers_[current_]->Read();
  } while (!ReadHonestly());
}

void Run::ContributeHonestly(uint32_t node) {
  if (honest_[node] == nullptr || result_[node] < round_[node]) return;
  const uint64_t round = ++round_[node];
  pushed_[node][round] = static_cast<float>(round * 10 + node);
  SendHonestly(node, round);
}

void Run::SendHonestly(uint32_t node, uint64_t round) {
  const std::vector<float> values(Specs()[0].elements, pushed_[node][round]);
  FrameHeader header;
  header.type = FrameType::kContribution;
  header.job = job_;
  header.generation = Generation(1);
  header.sender = node;
  header.partition = kWatched;
  header.round = Round(round);
  header.payload_bytes = static_cast<uint32_t>(values.size() * sizeof(float));
  honest_[node]->Write(header,
                       {reinterpret_cast<const char*>(values.data()), header.payload_bytes});
}

bool Run::ReadHonestly() {
  bool silent = true;
  for (uint32_t node = 0; node < kNodes; ++node) {
    if (honest_[node] == nullptr) continue;
    for (const Peer::Frame& frame : honest_[node]->Read()) {
      if (frame.header.partition != kWatched) continue;
      const uint64_t round = frame.header.round.value();
      if (frame.header.type == FrameType::kSendAgain && round == round_[node]) {
        SendHonestly(node, round);
        silent = false;
      }
      if (frame.header.type != FrameType::kResult) continue;
      CheckResult(node, frame);
      result_[node] = std::max(result_[node], round);
    }
    FUZZ_CHECK(!honest_[node]->closed() || !trusted_, "only the link of who errs is closed");
  }
  return silent;
}

void Run::CheckResult(uint32_t node, const Peer::Frame& frame) {
  if (!trusted_) return;
  const uint64_t round = frame.header.round.value();
  FUZZ_CHECK(round == round_[node], "a result of a round that is under way");
  float first = 0;
  FUZZ_CHECK(frame.payload.size() == Specs()[0].elements * sizeof(float), "a whole result");
  std::memcpy(&first, frame.payload.data(), sizeof(first));
  for (size_t i = 0; i < frame.payload.size(); i += sizeof(float)) {
    FUZZ_CHECK(std::memcmp(&first, frame.payload.data() + i, sizeof(first)) == 0,
               "all elements are of the same contributions");
  }
  if (honest_[1] != nullptr) {
    FUZZ_CHECK(first == pushed_[0][round] + pushed_[1][round], "the sum of what both have sent");
    return;
  }
  bool explained = false;
  for (const std::optional<float>& other : possible_[round]) {
    explained = explained || first == pushed_[0][round] + other.value_or(0.0f);
  }
  FUZZ_CHECK(explained, "the sum of what both have sent");
}

// Mostly a header that fits an existing partition.
FrameHeader Run::AnyHeader(std::string* payload) {
  const PartitionSpec& spec = Specs()[input_.Below(Specs().size())];
  FrameHeader header;
  header.type = static_cast<FrameType>(input_.Number<uint8_t>(17));
  if (input_.Take() % 4 == 0) header.flags = input_.Number<uint16_t>(64);
  header.dtype = spec.dtype;
  header.op = spec.op;
  header.job = job_;
  header.generation = Generation(1);
  header.sender = 1;
  header.partition = spec.id;
  header.plan_version = PlanVersion(spec.version.value() + input_.Number<uint64_t>(2));
  header.round = Round(input_.Number<uint64_t>(4));
  size_t bytes = spec.elements * SizeOf(spec.dtype);
  switch (input_.Take() % 16) {  // changes a single field
    case 0:
      header.dtype = static_cast<DType>(input_.Take() % kDTypes);
      break;
    case 1:
      header.op = static_cast<ReduceOp>(input_.Take() % kReduceOps);
      break;
    case 2:
      header.job = JobId(input_.Number<uint64_t>(2));
      break;
    case 3:
      header.generation = Generation(input_.Number<uint32_t>(3));
      break;
    case 4:
      header.sender = input_.Number<uint32_t>(4);
      break;
    case 5:
      header.partition = PartitionId(input_.Number<uint64_t>(2) << 32 | input_.Number<uint32_t>(2));
      break;
    case 6:
      bytes = input_.Number<uint32_t>(64);
      break;
    case 7:
      bytes = StampBytes(input_.Number<uint8_t>(5));
      break;
    case 8:
      header.detail = input_.Number<uint32_t>(16);
      header.contributors = input_.Number<uint32_t>(4);
      header.priority = input_.Take<int32_t>();
      break;
    case 9:
      bytes = 0;
      break;
    default:
      break;
  }
  const bool has_payload = header.type == FrameType::kContribution ||
                           header.type == FrameType::kResult || header.type == FrameType::kAudit ||
                           header.type == FrameType::kHello || header.type == FrameType::kProof ||
                           input_.Flag();
  if (header.flags & kFlagEmpty || !has_payload) bytes = 0;
  payload->clear();
  if (header.partition == kWatched) {
    const auto value = static_cast<float>(input_.Take<int8_t>());
    while (payload->size() + sizeof(value) <= std::min<size_t>(bytes, 1 << 16)) {
      payload->append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
  } else if (header.type == FrameType::kHello) {
    payload->assign(auth::TextOf(auth::Encode({.expires_unix_s = kExpires})));
    bytes = payload->size() - input_.Flag();
  } else if (header.type == FrameType::kProof) {  // an invalid proof
    payload->assign(input_.Bytes(auth::kSecretBytes));
    bytes = input_.Flag() ? auth::kSecretBytes : payload->size();
  } else {
    payload->assign(input_.Bytes(std::min<size_t>(bytes, 64)));
  }
  payload->resize(std::min<size_t>(bytes, 1 << 16), '\x3c');
  header.payload_bytes = static_cast<uint32_t>(bytes);
  if (header.flags & kFlagPayloadCrc) {
    header.payload_crc32c = Crc32c(std::as_bytes(std::span<const char>(*payload)));
  }
  return header;
}

void Run::NoteContribution(const FrameHeader& header, std::string_view payload) {
  if (header.type == FrameType::kHello && !strangers_) trusted_ = false;
  if (header.type != FrameType::kContribution || header.partition != kWatched) return;
  std::optional<float> value;
  if (payload.size() >= sizeof(float)) {
    value.emplace();
    std::memcpy(&*value, payload.data(), sizeof(float));
  }
  possible_[header.round.value()].insert(value);
}

// Writes a frame; with `whole` all of its payload.
void Run::WriteFrame(Peer* peer, bool whole) {
  std::string payload;
  const FrameHeader header = AnyHeader(&payload);
  if (!whole) {
    const size_t missing = std::min<size_t>(payload.size(), input_.Take());
    payload.resize(payload.size() - missing);
    // The shard takes the next frame's bytes as the rest of the payload.
    if (missing > 0 && !strangers_) trusted_ = false;
  }
  NoteContribution(header, payload);
  peer->Write(header, payload);
}

void Run::WriteBundle(Peer* peer) {
  std::string headers;
  std::string payloads;
  const uint32_t count = 1 + input_.Number<uint8_t>(4) % 40;
  for (uint32_t i = 0; i < count; ++i) {
    std::string payload;
    const FrameHeader header = AnyHeader(&payload);
    EncodedHeader bytes;
    EncodeHeader(header, &bytes);
    headers.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    NoteContribution(header, payload);
    payloads += payload;
  }
  FrameHeader bundle;
  bundle.type = FrameType::kBundle;
  bundle.detail = count;
  bundle.payload_bytes = static_cast<uint32_t>(headers.size() + payloads.size());
  peer->Write(bundle, headers + payloads);
}

// Carries out an order of the scheduler.
void Run::Order() {
  trusted_ = false;
  const PartitionSpec& spec = Specs()[input_.Below(Specs().size())];
  const auto what = input_.Take() % 7;
  const PlanVersion version(input_.Number<uint64_t>(6));
  const bool flag = input_.Flag();
  const NodeId node(input_.Below(kNodes));
  switch (what) {
    case 0:
      spec_.failed = true;
      return shard_->SetJob(spec_, memory_);
    case 1:
      spec_.lost.insert(node);
      return shard_->SetJob(spec_, memory_);
    case 2:
      return shard_->TakeOver(job_, spec.id, version, flag);
    case 3:
      return shard_->HandOver(job_, spec.id.tensor(), {spec.id.index()}, version);
    case 4:
      return shard_->DropPartitions(job_, spec.id.tensor(), {spec.id.index()});
    case 5:
      return shard_->LimitInFlight(job_, version.value(), SendLimits::kUnlimited);
    default:
      std::vector<OpenRoundInfo> open;
      shard_->RollCall(flag ? job_ : JobId(), version.value(), &open);
  }
}

void Run::Attack() {
  Peer* const peer = attackers_[current_].get();
  switch (input_.Take() % 16) {
    case 0:
      if (!strangers_) trusted_ = false;  // the bytes may be any message
      peer->Write(input_.Bytes(input_.Take()));
      return;
    case 1:
      return WriteFrame(peer, /*whole=*/false);
    case 2:
    case 3:
      return WriteBundle(peer);
    case 4:
      current_ = input_.Below(attackers_.size());
      return;
    case 5:
      attackers_[current_] = std::make_unique<Peer>(shard_);
      // May be another link of the same node, which replaces the former link, or a link as node 0.
      if (const uint8_t who = input_.Take(); !strangers_ && who < 200) {
        if (who < 20) trusted_ = false;
        Admit(attackers_[current_].get(), who < 20 ? 0 : 1);
      }
      return;
    case 6:
      if (!strangers_) Order();
      return;
    case 7:
      shard_->TrimEarly();
      return;
    case 8:
      reads_ = !reads_;
      return Settle();
    case 9:
    case 10:
      ContributeHonestly(input_.Below(kNodes));
      return Settle();
    default:
      return WriteFrame(peer, /*whole=*/true);
  }
}

void Run::Play() {
  strangers_ = input_.Flag();
  honest_[0] = std::make_unique<Peer>(shard_);
  FUZZ_CHECK(Admit(honest_[0].get(), 0), "who has the token is admitted");
  for (int i = 0; i < 2; ++i) attackers_.push_back(std::make_unique<Peer>(shard_));
  Peer* const other =
      strangers_ ? (honest_[1] = std::make_unique<Peer>(shard_)).get() : attackers_.front().get();
  FUZZ_CHECK(Admit(other, 1), "who has the token is admitted");
  for (int i = 0; i < 64 && !input_.empty(); ++i) Attack();
  Settle();
  if (!strangers_) return;
  // Both honest nodes go on as if there were no attackers.
  for (uint32_t node = 0; node < kNodes; ++node) ContributeHonestly(node);
  Settle();
  const uint64_t last = std::max(round_[0], round_[1]);
  for (uint32_t node = 0; node < kNodes; ++node) {
    if (round_[node] < last) ContributeHonestly(node);
  }
  Settle();
  FUZZ_CHECK(result_[0] == last && result_[1] == last, "every round of theirs ends");
}

}  // namespace
}  // namespace addend::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace addend::fuzz;
  // Destroyed by exit(), before older objects: its thread writes to the log of start.cc.
  static Server server;
  Input input(data, size);
  addend::EventLoop* const loop = server.shard->loop();
  loop->Run([&] { Run(&server, &input).Play(); });
  // Deferred tasks destroy the dropped objects too, so this task runs after them.
  std::latch over(1);
  loop->Run([&] {
    loop->Defer([&] {
      FUZZ_CHECK(server.budget.used() == 0, "all memory has been given back");
      over.count_down();
    });
  });
  over.wait();
  return 0;
}
