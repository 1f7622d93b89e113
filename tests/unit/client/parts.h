// The parts of a client without a socket, an agent and a GPU: messages are recorded, answers are
// calls, segments are memory of this process, and the executor only records the calls.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lib/client/device_rounds.h"
#include "lib/client/operations.h"
#include "lib/client/socket.h"

namespace addend::client {

// A descriptor of memory, as the agent sends it for a segment.
inline GuardedFd SegmentMemory(size_t bytes) {
  const ForkLock lock;
  GuardedFd fd(::memfd_create("segment", MFD_CLOEXEC), lock);
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  return fd;
}

// The packet in which a message arrives, without its dimensions.
inline Packet PacketOf(const ipc::Encoded& message, std::vector<GuardedFd> fds = {}) {
  return {message.fixed, std::string(message.text), std::move(fds)};
}

// The messages of a type, in the order of sending.
template <typename Typed>
std::vector<Typed> MessagesIn(const std::vector<Packet>& sent) {
  std::vector<Typed> found;
  for (const Packet& packet : sent) {
    if (packet.message.type == Typed().Encode().fixed.type) found.push_back(packet.Decode<Typed>());
  }
  return found;
}

class RecordingExecutor final : public DeviceExecutor {
 public:
  struct Record {
    std::vector<std::string> calls;
    std::string failing;  // the call that returns false
    DeviceSink* sink = nullptr;
    std::byte* direct = nullptr;  // of the last Contribute
    uint64_t Count(const std::string& call) const {
      return static_cast<uint64_t>(std::count(calls.begin(), calls.end(), call));
    }
  };
  explicit RecordingExecutor(Record* record) : record_(record) {}

  // Makes devices with such an executor.
  static DeviceRounds::OpenFn OpenTo(Record* record) {
    return [record](std::shared_ptr<DeviceSink> sink, std::shared_ptr<Device>* device) {
      record->calls.push_back("open");
      record->sink = sink.get();
      *device =
          std::make_shared<Device>(std::move(sink), std::make_unique<RecordingExecutor>(record));
      return client::Error{};
    };
  }

  const char* bus_id() const override { return "0000:3b:00.0"; }
  const char* Error() const override { return "the GPU has failed"; }
  bool MakeId(char* id) override {
    std::fill(id, id + kDeviceIdBytes, 'i');
    return Note("id");
  }
  bool Join(const ipc::Group&, const char*, bool) override { return Note("join"); }
  void Map(void*, size_t, bool) override { Note("map"); }
  void Unmap(void*) override { Note("unmap"); }
  bool Export(uint64_t, std::byte** memory, int* dmabuf) override {
    static std::byte exported;
    *memory = &exported;
    *dmabuf = ::memfd_create("exported", MFD_CLOEXEC);
    return Note("export");
  }
  void Unexport(std::byte*) override { Note("unexport"); }
  bool Begin(DeviceRound*, void*) override { return Note("begin"); }
  bool Contribute(DeviceRound* round, uint64_t) override {
    record_->direct = round->direct;
    return Note("contribute");
  }
  bool Fetch(DeviceRound*, uint64_t, uint64_t) override { return Note("fetch"); }
  bool Arrived(DeviceRound*, uint64_t, uint64_t, bool* complete) override {
    *complete = true;
    return Note("arrived");
  }
  bool WaitOn(DeviceRound*, void*) override { return Note("wait"); }
  void End(DeviceRound*) override { Note("end"); }

 private:
  bool Note(const std::string& call) {
    record_->calls.push_back(call);
    return call != record_->failing;
  }
  Record* const record_;
};

// Operations and GPU rounds, joined as the Context joins them.
class ClientPartsTest : public testing::Test {
 protected:
  explicit ClientPartsTest(CopyFn copy = Copy) : copy_(std::move(copy)) {}

  static constexpr uint32_t kNumber = 4;  // the agent's, of Declare's tensor
  static constexpr int64_t kElements = 4;

  // The two segments of a tensor of kElements floats. `results_` stays open for WriteResult.
  std::vector<GuardedFd> MakeSegments() {
    const size_t slot = ipc::SlotBytes(kElements * sizeof(float));
    std::vector<GuardedFd> fds;
    fds.push_back(SegmentMemory(slot));
    fds.push_back(SegmentMemory(2 * slot));
    GuardedFd results;
    {
      const ForkLock lock;
      results = GuardedFd(::dup(fds.back().get()), lock);
    }
    results_ = std::move(results);
    return fds;
  }

  // Declares a tensor of kElements floats in a thread of its own; `answer` gets the request.
  Error Declare(const std::string& name, const std::function<void(uint64_t)>& answer,
                std::shared_ptr<Tensor>* tensor) {
    Error error;
    const size_t before = Sent<ipc::DeclareMessage>().size();
    std::thread caller([&] {
      error = operations_.Declare({name, {kElements}, DType::kFloat32, ReduceOp::kSum}, tensor);
    });
    answer(AwaitSent<ipc::DeclareMessage>(before).request);
    caller.join();
    return error;
  }

  std::shared_ptr<Operation> Push(const std::shared_ptr<Tensor>& tensor, const float* in,
                                  float* out) {
    std::shared_ptr<Operation> operation;
    const Error error = operations_.Push(tensor, in, out, /*priority=*/0, &operation);
    EXPECT_TRUE(error.ok()) << error.text;
    return operation;
  }

  // Plays the agent, which writes a round's result to its slot: `value` for every element.
  void WriteResult(uint64_t round, float value) const {
    const std::vector<float> values(kElements, value);
    const size_t bytes = values.size() * sizeof(float);
    const auto offset = static_cast<off_t>((round & 1) * ipc::SlotBytes(bytes));
    ASSERT_EQ(::pwrite(results_.get(), values.data(), bytes, offset), static_cast<ssize_t>(bytes));
  }

  template <typename Typed>
  std::vector<Typed> Sent() {
    const std::lock_guard<std::mutex> lock(sent_mu_);
    return MessagesIn<Typed>(sent_);
  }
  // The first message of the type after `before` of them.
  template <typename Typed>
  Typed AwaitSent(size_t before) {
    std::unique_lock<std::mutex> lock(sent_mu_);
    sent_changed_.wait(lock, [&] { return MessagesIn<Typed>(sent_).size() > before; });
    return MessagesIn<Typed>(sent_)[before];
  }

 private:
  void Send(const ipc::Encoded& message) {
    const std::lock_guard<std::mutex> lock(sent_mu_);
    sent_.push_back(PacketOf(message));
    sent_changed_.notify_all();
  }

  const CopyFn copy_;
  GuardedFd results_;
  std::mutex sent_mu_;
  std::condition_variable sent_changed_;
  std::vector<Packet> sent_;  // guarded by sent_mu_

 protected:
  RecordingExecutor::Record record_;
  DeviceRounds device_rounds_{
      "/agent", [this](const ipc::Encoded& message, GuardedFd) { Send(message); },
      [this](const Error& error) { operations_.Fail(error); }, RecordingExecutor::OpenTo(&record_)};
  Operations operations_{"/agent", copy_, [this](const ipc::Encoded& message) { Send(message); },
                         &device_rounds_};
};

}  // namespace addend::client
