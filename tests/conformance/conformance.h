// The contract of lib/transport/transport.h as tests. A backend instantiates TransportConformance
// with its World.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/mutex.h"
#include "lib/memory/arena.h"
#include "lib/shard/event_loop.h"
#include "lib/transport/transport.h"

namespace addend {

// Two shards that can reach each other.
class World {
 public:
  virtual ~World() = default;
  virtual std::shared_ptr<Transport> MakeTransport(EventLoop* loop) = 0;
  virtual Address ListenAddress() = 0;
  virtual Address NobodyListens() = 0;
};

// Records the callbacks of a link. Used on its loop's thread; the test reads it after WaitFor.
class RecordingSink : public Sink {
 public:
  struct Frame {
    FrameHeader header;
    std::string payload;
  };
  absl::StatusOr<MutableBytes> Place(const FrameHeader& header) override {
    if (!place_error.ok()) return place_error;
    if (drop_payloads) return MutableBytes();
    rooms.push_back(*Arena::Create(header.payload_bytes));
    return rooms.back()->memory();
  }
  absl::Status OnFrame(const FrameHeader& header, Payload payload) override {
    EXPECT_FALSE(closed) << "a frame after OnClosed";
    const Bytes bytes = payload.bytes();
    MutexLock lock(&mu);
    frames.push_back(
        {header, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())});
    if (!rooms.empty() && !bytes.empty() && bytes.data() == rooms.front()->memory().data()) {
      rooms.pop_front();
    }
    if (hold_payloads) held.push_back(std::move(payload));
    cv.NotifyAll();
    return frame_error;
  }
  void OnClosed(absl::Status why) override {
    MutexLock lock(&mu);
    EXPECT_FALSE(closed) << "OnClosed ran twice";
    closed = true;
    close_reason = why;
    dones_at_close = dones;
    cv.NotifyAll();
  }
  void CountDone(const absl::Status& status) {
    MutexLock lock(&mu);
    ++dones;
    if (!status.ok()) ++failed_dones;
    cv.NotifyAll();
  }
  template <typename Condition>
  bool WaitFor(Condition condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    MutexLock lock(&mu);
    while (!condition()) {
      if (!cv.WaitUntil(&mu, deadline)) return condition();
    }
    return true;
  }

  absl::Status place_error;
  absl::Status frame_error;
  bool drop_payloads = false;
  bool hold_payloads = false;
  // Memory for incoming payloads. Arenas, as in the services: a transport's registration of an
  // arena outlives the link.
  std::deque<std::shared_ptr<Arena>> rooms;
  Mutex mu;
  CondVar cv;
  std::vector<Frame> frames;
  std::vector<Payload> held;
  bool closed = false;
  absl::Status close_reason;
  int dones = 0;
  int failed_dones = 0;
  int dones_at_close = 0;
};

using WorldFactory = std::function<std::unique_ptr<World>()>;

class TransportConformance : public testing::TestWithParam<WorldFactory> {
 protected:
  void SetUp() override {
    world_ = GetParam()();
    here_ = *EventLoop::Start("here");
    there_ = *EventLoop::Start("there");
    here_->Run([&] { client_ = world_->MakeTransport(here_.get()); });
    there_->Run([&] {
      server_ = world_->MakeTransport(there_.get());
      address_ = *server_->Listen(world_->ListenAddress(), [this](Link* link) {
        accepted_link_ = link;
        return &accepted_;
      });
    });
  }
  void TearDown() override {
    if (here_) here_->Run([&] { client_.reset(); });
    there_->Run([&] {
      accepted_.held.clear();
      server_.reset();
    });
  }

  // Connects and waits until a first frame has gone through.
  void Connect() {
    here_->Run([&] {
      client_->Connect(address_, 0, &connected_, absl::Seconds(10),
                       [this](absl::StatusOr<Link*> link) {
                         ASSERT_TRUE(link.ok()) << link.status();
                         link_ = *link;
                         Send(link_, &connected_, "first");
                       });
    });
    ASSERT_TRUE(accepted_.WaitFor([&] { return accepted_.frames.size() == 1; }));
  }
  // On the loop of `link`. The payload lives as long as the test.
  void Send(Link* link, RecordingSink* sink, std::string payload, uint64_t round = 0) {
    payloads_.push_back(std::make_unique<std::string>(std::move(payload)));
    FrameHeader header;
    header.type = FrameType::kContribution;
    header.round = Round(round);
    header.partition = PartitionId(round);
    inside_send_ = true;
    link->Send(header, std::as_bytes(std::span<const char>(*payloads_.back())),
               [this, sink](absl::Status status) {
                 EXPECT_FALSE(inside_send_) << "Done ran inside Send";
                 sink->CountDone(status);
               });
    inside_send_ = false;
  }

  std::unique_ptr<World> world_;
  std::unique_ptr<EventLoop> here_;
  std::unique_ptr<EventLoop> there_;
  std::shared_ptr<Transport> client_;
  std::shared_ptr<Transport> server_;
  Address address_;
  RecordingSink connected_;
  RecordingSink accepted_;
  Link* link_ = nullptr;
  Link* accepted_link_ = nullptr;
  std::vector<std::unique_ptr<std::string>> payloads_;
  bool inside_send_ = false;
};

TEST_P(TransportConformance, FramesArriveCompleteOnceAndInOrder) {
  Connect();
  const std::vector<size_t> sizes = {0, 1, 95, 96, 97, 4096, 1000003, 0, 3 << 20, 17};
  here_->Run([&] {
    for (size_t i = 0; i < sizes.size(); ++i)
      Send(link_, &connected_, std::string(sizes[i], 'a' + i), i);
  });
  ASSERT_TRUE(accepted_.WaitFor([&] { return accepted_.frames.size() == sizes.size() + 1; }));
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(accepted_.frames[i + 1].header.round, Round(i));
    EXPECT_EQ(accepted_.frames[i + 1].payload, std::string(sizes[i], 'a' + i)) << "frame " << i;
  }
}

TEST_P(TransportConformance, ManySmallFramesAtOnceArriveCompleteOnceAndInOrder) {
  Connect();
  const auto text = [](size_t i) { return std::string(i * 37 % 5000, static_cast<char>(i)); };
  constexpr size_t kFrames = 1000;
  here_->Run([&] {
    for (size_t i = 0; i < kFrames; ++i) Send(link_, &connected_, text(i), i);
  });
  ASSERT_TRUE(accepted_.WaitFor([&] { return accepted_.frames.size() == kFrames + 1; }));
  for (size_t i = 0; i < kFrames; ++i) {
    EXPECT_EQ(accepted_.frames[i + 1].header.round, Round(i));
    EXPECT_EQ(accepted_.frames[i + 1].payload, text(i)) << "frame " << i;
  }
  ASSERT_TRUE(connected_.WaitFor([&] { return connected_.dones == kFrames + 1; }));
}

TEST_P(TransportConformance, EverySendHasOneDone) {
  Connect();
  here_->Run([&] {
    for (int i = 0; i < 100; ++i) Send(link_, &connected_, std::string(5000, 'x'));
  });
  ASSERT_TRUE(connected_.WaitFor([&] { return connected_.dones == 101; }));
  EXPECT_EQ(connected_.failed_dones, 0);
}

TEST_P(TransportConformance, BothDirectionsAtOnce) {
  Connect();
  constexpr int kFrames = 200;
  here_->Run([&] {
    for (int i = 0; i < kFrames; ++i) Send(link_, &connected_, std::string(100000, 'h'));
  });
  there_->Run([&] {
    for (int i = 0; i < kFrames; ++i) {
      accepted_link_->Send(FrameHeader{}, std::as_bytes(std::span<const char>(*payloads_[1])),
                           nullptr);
    }
  });
  EXPECT_TRUE(accepted_.WaitFor([&] { return accepted_.frames.size() == kFrames + 1; }));
  EXPECT_TRUE(connected_.WaitFor([&] { return connected_.frames.size() == kFrames; }));
}

TEST_P(TransportConformance, ALinkCanChangeItsGroupWhileFramesAreUnderWay) {
  Connect();
  constexpr size_t kFrames = 300;
  for (uint64_t group = 0; group < 3; ++group) {
    there_->Run([&] { accepted_link_->Share(group % 2); });
    here_->Run([&] {
      link_->Share(group);
      for (size_t i = 0; i < kFrames; ++i) {
        Send(link_, &connected_, std::string(20000, 'g'), group * kFrames + i);
      }
    });
  }
  ASSERT_TRUE(accepted_.WaitFor([&] { return accepted_.frames.size() == 3 * kFrames + 1; }));
  for (size_t i = 0; i < 3 * kFrames; ++i)
    EXPECT_EQ(accepted_.frames[i + 1].header.round, Round(i));
  EXPECT_TRUE(connected_.WaitFor([&] { return connected_.dones == 3 * kFrames + 1; }));
}

TEST_P(TransportConformance, CloseSendsTheReasonToThePeer) {
  Connect();
  here_->Run([&] { link_->Close(absl::ResourceExhaustedError("the cup is full")); });
  ASSERT_TRUE(connected_.WaitFor([&] { return connected_.closed; }));
  ASSERT_TRUE(accepted_.WaitFor([&] { return accepted_.closed; }));
  EXPECT_EQ(accepted_.close_reason.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(accepted_.close_reason.message(), "the cup is full");
}

TEST_P(TransportConformance, CloseWithOkIsCancelledForThePeer) {
  Connect();
  here_->Run([&] { link_->Close(absl::OkStatus()); });
  ASSERT_TRUE(accepted_.WaitFor([&] { return accepted_.closed; }));
  EXPECT_EQ(accepted_.close_reason.code(), absl::StatusCode::kCancelled);
}

TEST_P(TransportConformance, AllDonesHaveRunWhenTheLinkIsClosed) {
  Connect();
  here_->Run([&] {
    for (int i = 0; i < 50; ++i) Send(link_, &connected_, std::string(1 << 20, 'x'));
    link_->Close(absl::CancelledError("enough"));
    Send(link_, &connected_, "after close");
  });
  ASSERT_TRUE(connected_.WaitFor([&] { return connected_.closed; }));
  EXPECT_EQ(connected_.dones_at_close, 52);
}

TEST_P(TransportConformance, AnErrorOfTheSinkClosesBothEnds) {
  Connect();
  accepted_.frame_error = absl::UnauthenticatedError("wrong token");
  here_->Run([&] { Send(link_, &connected_, "x"); });
  ASSERT_TRUE(accepted_.WaitFor([&] { return accepted_.closed; }));
  ASSERT_TRUE(connected_.WaitFor([&] { return connected_.closed; }));
  EXPECT_EQ(accepted_.close_reason.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(connected_.close_reason.code(), absl::StatusCode::kUnauthenticated);
}

TEST_P(TransportConformance, APeerThatShutsDownIsNoticed) {
  Connect();
  there_->Run([&] { server_.reset(); });
  EXPECT_TRUE(accepted_.closed);
  ASSERT_TRUE(connected_.WaitFor([&] { return connected_.closed; }));
  EXPECT_EQ(connected_.close_reason.code(), absl::StatusCode::kUnavailable);
}

TEST_P(TransportConformance, AFailedConnectCallsNoSink) {
  Mutex mu;
  CondVar cv;
  absl::Status status;
  bool decided = false;
  here_->Run([&] {
    client_->Connect(world_->NobodyListens(), 0, &connected_, absl::Seconds(5),
                     [&](absl::StatusOr<Link*> link) {
                       MutexLock lock(&mu);
                       status = link.status();
                       decided = true;
                       cv.NotifyAll();
                     });
  });
  {
    MutexLock lock(&mu);
    while (!decided) cv.Wait(&mu);
  }
  EXPECT_FALSE(status.ok());
  EXPECT_FALSE(connected_.closed);
}

TEST_P(TransportConformance, AfterCloseNothingIsWrittenToTheSinksMemory) {
  Connect();
  here_->Run([&] {
    for (uint64_t i = 0; i < 16; ++i) Send(link_, &connected_, std::string(8 << 20, 'x'), i);
  });
  std::deque<std::shared_ptr<Arena>> given;
  if (client_->traits().by_reference) {  // no payload is written: the sink is not even asked
    ASSERT_TRUE(accepted_.WaitFor([&] { return accepted_.frames.size() == 17; }));
    EXPECT_TRUE(accepted_.rooms.empty());
    return;
  }
  bool under_way = false;
  for (int tries = 0; !under_way && tries < 100000; ++tries) {
    there_->Run([&] {
      under_way = !accepted_.rooms.empty();
      if (!under_way) return;
      accepted_link_->Close(absl::UnavailableError("enough"));
      for (auto& room : accepted_.rooms)
        std::memset(room->memory().data(), '.', room->memory().size());
    });
  }
  ASSERT_TRUE(under_way);
  ASSERT_TRUE(connected_.WaitFor([&] { return connected_.closed; }));
  // Absence has no event to wait for: this gives frames under way time to arrive.
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  there_->Run([&] { given = accepted_.rooms; });
  ASSERT_FALSE(given.empty());
  for (const auto& room : given) {
    const MutableBytes bytes = room->memory();
    EXPECT_TRUE(
        std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{'.'}; }));
  }
}

}  // namespace addend
