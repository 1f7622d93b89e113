#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "lib/base/failure.h"
#include "lib/base/fd.h"
#include "lib/transport/tcp/factory.h"
#include "lib/transport/tcp/tcp_transport.h"
#include "tests/conformance/conformance.h"

namespace addend {
namespace {

class TcpWorld : public World {
 public:
  std::shared_ptr<Transport> MakeTransport(EventLoop* loop) override {
    return MakeTcpTransport(loop);
  }
  Address ListenAddress() override { return {.host = "127.0.0.1", .port = 0}; }
  Address NobodyListens() override { return {.host = "127.0.0.1", .port = 1}; }
};

INSTANTIATE_TEST_SUITE_P(Tcp, TransportConformance,
                         testing::Values([] { return std::make_unique<TcpWorld>(); }));

// A peer that is not a Link: raw bytes on a socket.
class TcpRawPeer : public TransportConformance {
 protected:
  void SetUp() override {
    TransportConformance::SetUp();
    socket_ = UniqueFd(::socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(address_.port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  void Write(const void* bytes, size_t size) {
    ASSERT_EQ(::write(socket_.get(), bytes, size), static_cast<ssize_t>(size));
  }
  UniqueFd socket_;
};
INSTANTIATE_TEST_SUITE_P(Tcp, TcpRawPeer,
                         testing::Values([] { return std::make_unique<TcpWorld>(); }));

TEST_P(TcpRawPeer, InvalidBytesCloseTheLinkWithDataLoss) {
  const std::string http = "GET / HTTP/1.1\r\nHost: localhost\r\n" + std::string(200, ' ');
  Write(http.data(), http.size());
  ASSERT_TRUE(accepted_.WaitFor([&] { return accepted_.closed; }));
  EXPECT_EQ(accepted_.close_reason.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(server_->stats().links_malformed, 1u);
}

TEST_P(TcpRawPeer, AnotherWireVersionGetsGoawayWithTheReason) {
  EncodedHeader bytes;
  EncodeHeader(FrameHeader{}, &bytes);
  bytes[4] = std::byte{1};
  Write(bytes.data(), bytes.size());
  ASSERT_TRUE(accepted_.WaitFor([&] { return accepted_.closed; }));
  EXPECT_EQ(KindOf(accepted_.close_reason), FailureKind::kVersion);
  EncodedHeader answer;
  ASSERT_EQ(::recv(socket_.get(), answer.data(), answer.size(), MSG_WAITALL),
            static_cast<ssize_t>(answer.size()));
  const auto goaway = DecodeHeader(answer);
  ASSERT_TRUE(goaway.ok()) << goaway.status();
  EXPECT_EQ(goaway->type, FrameType::kGoaway);
  EXPECT_EQ(goaway->detail >> 8,
            static_cast<uint32_t>(TraitsOf(FailureKind::kVersion).exit_status));
}

TEST_P(TcpRawPeer, APeerThatDiesInTheMiddleOfAPayloadIsUnavailable) {
  FrameHeader header;
  header.type = FrameType::kContribution;
  header.payload_bytes = 1000;
  EncodedHeader bytes;
  EncodeHeader(header, &bytes);
  Write(bytes.data(), bytes.size());
  Write("half", 4);
  socket_.Reset();
  ASSERT_TRUE(accepted_.WaitFor([&] { return accepted_.closed; }));
  EXPECT_EQ(accepted_.close_reason.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(accepted_.frames.empty());
}

TEST_P(TcpRawPeer, APayloadWithAWrongChecksumClosesTheLink) {
  FrameHeader header;
  header.type = FrameType::kContribution;
  header.flags = kFlagPayloadCrc;
  header.payload_bytes = 4;
  header.payload_crc32c = 1;
  EncodedHeader bytes;
  EncodeHeader(header, &bytes);
  Write(bytes.data(), bytes.size());
  Write("data", 4);
  ASSERT_TRUE(accepted_.WaitFor([&] { return accepted_.closed; }));
  EXPECT_EQ(accepted_.close_reason.code(), absl::StatusCode::kDataLoss);
}

TEST_P(TransportConformance, ADroppedPayloadIsReadAndTheNextFrameArrives) {
  Connect();
  accepted_.drop_payloads = true;
  here_->Run([&] {
    Send(link_, &connected_, std::string(1 << 20, 'd'));
    Send(link_, &connected_, "");
  });
  ASSERT_TRUE(accepted_.WaitFor([&] { return accepted_.frames.size() == 3; }));
  EXPECT_EQ(accepted_.frames[1].header.payload_bytes, 1u << 20);
  EXPECT_EQ(accepted_.frames[1].payload, "");
}

// Two jobs at the same server: all their frames wait in the kernel before the server's loop sees
// any of them.
class TcpJobs : public testing::Test {
 protected:
  static constexpr size_t kPayload = 16 << 10;
  static constexpr int kFrames = 3;  // of every link: less than the kernel's first window
  // Counts the bytes that were taken from a job, and from the other job at the moment when this job
  // is complete.
  struct Job {
    size_t waiting = 0;  // bytes of payload in complete frames
    size_t taken = 0;
  };
  class CountingSink : public Sink {
   public:
    CountingSink(TcpJobs* test, Job* job) : test_(test), job_(job) {}
    absl::StatusOr<MutableBytes> Place(const FrameHeader& header) override {
      return MutableBytes(test_->room_).first(header.payload_bytes);
    }
    absl::Status OnFrame(const FrameHeader&, Payload payload) override {
      job_->taken += payload.bytes().size();
      if (job_ == &test_->few_ && job_->taken == job_->waiting) test_->OnAllOfTheFew();
      return absl::OkStatus();
    }
    void OnClosed(absl::Status) override {}

   private:
    TcpJobs* const test_;
    Job* const job_;
  };

  // A connection in which frames wait to be read; the near end.
  UniqueFd Filled(Job* job) {
    UniqueFd listener(::socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener.get(), 1), 0);
    EXPECT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    UniqueFd peer(::socket(AF_INET, SOCK_STREAM, 0));
    EXPECT_EQ(::connect(peer.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    UniqueFd ours(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    FrameHeader header;
    header.type = FrameType::kContribution;
    header.payload_bytes = kPayload;
    std::vector<std::byte> frame(kFrameHeaderBytes + kPayload);
    EncodedHeader bytes;
    EncodeHeader(header, &bytes);
    std::copy(bytes.begin(), bytes.end(), frame.begin());
    for (int i = 0; i < kFrames; ++i) {
      EXPECT_EQ(::send(peer.get(), frame.data(), frame.size(), MSG_DONTWAIT),
                static_cast<ssize_t>(frame.size()));
      job->waiting += kPayload;
    }
    peers_.push_back(std::move(peer));
    return ours;
  }
  void AddLinks(int count, uint64_t group, Job* job, std::vector<UniqueFd>* ends) {
    for (int i = 0; i < count; ++i) ends->push_back(Filled(job));
    accepts_.push_back([this, group, job](Link* link) {
      link->Share(group);
      sinks_.push_back(std::make_unique<CountingSink>(this, job));
      return sinks_.back().get();
    });
  }
  void OnAllOfTheFew() {
    MutexLock lock(&mu_);
    of_many_ = many_.taken;
    done_ = true;
    cv_.NotifyAll();
  }

  std::vector<UniqueFd> peers_;
  std::vector<std::unique_ptr<CountingSink>> sinks_;
  std::deque<Transport::AcceptFn> accepts_;
  std::vector<std::byte> room_ = std::vector<std::byte>(kPayload);
  Job many_;
  Job few_;
  Mutex mu_;
  CondVar cv_;
  bool done_ = false;
  size_t of_many_ = 0;
};

TEST_F(TcpJobs, AJobWithManyLinksDoesNotDelayAnotherJob) {
  auto loop = *EventLoop::Start("server");
  std::shared_ptr<Transport> transport = MakeTcpTransport(loop.get());
  std::vector<UniqueFd> ends_of_many;
  std::vector<UniqueFd> ends_of_few;
  AddLinks(250, /*group=*/1, &many_, &ends_of_many);
  AddLinks(2, /*group=*/2, &few_, &ends_of_few);
  // All at once: the loop learns of the job with many links first.
  loop->Run([&] {
    auto* const tcp = static_cast<TcpTransport*>(transport.get());
    for (UniqueFd& end : ends_of_many) tcp->Adopt(std::move(end), accepts_[0]);
    for (UniqueFd& end : ends_of_few) tcp->Adopt(std::move(end), accepts_[1]);
  });
  {
    MutexLock lock(&mu_);
    while (!done_) cv_.Wait(&mu_);
  }
  EXPECT_LT(of_many_, many_.waiting * 3 / 4) << "of the job with many links, when all "
                                             << few_.waiting << " bytes of the other were there";
  loop->Run([&] { transport.reset(); });
}

TEST(TcpPortTest, HandsASocketToTheShardThatItsHelloAsksFor) {
  auto loop0 = *EventLoop::Start("shard0");
  auto loop1 = *EventLoop::Start("shard1");
  auto transport0 = MakeTcpTransport(loop0.get());
  auto transport1 = MakeTcpTransport(loop1.get());
  RecordingSink sink0;
  RecordingSink sink1;
  std::vector<ShardEnd> ends;
  ends.push_back({loop0.get(), transport0, [&](Link*) { return &sink0; }});
  ends.push_back({loop1.get(), transport1, [&](Link*) { return &sink1; }});
  auto port = OpenTcpPort({.host = "127.0.0.1", .port = 0}, std::move(ends));
  ASSERT_TRUE(port.ok()) << port.status();

  auto here = *EventLoop::Start("here");
  std::shared_ptr<Transport> client;
  RecordingSink mine;
  here->Run([&] {
    client = MakeTcpTransport(here.get());
    client->Connect({.host = "127.0.0.1", .port = (*port)->port()}, 1, &mine, absl::Seconds(5),
                    [](absl::StatusOr<Link*> link) {
                      FrameHeader hello;
                      hello.type = FrameType::kHello;
                      hello.partition = PartitionId(1);
                      (*link)->Send(hello, {}, nullptr);
                    });
  });
  EXPECT_TRUE(sink1.WaitFor([&] { return sink1.frames.size() == 1; }));
  EXPECT_TRUE(sink0.frames.empty());
  here->Run([&] { client.reset(); });
  port->reset();
  loop0->Run([&] { transport0.reset(); });
  loop1->Run([&] { transport1.reset(); });
}

TEST(TcpPortTest, ATakenPortIsNamed) {
  auto loop = *EventLoop::Start("shard");
  auto first = OpenTcpPort({.host = "127.0.0.1", .port = 0}, {});
  ASSERT_TRUE(first.ok());
  auto second = OpenTcpPort({.host = "127.0.0.1", .port = (*first)->port()}, {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(second.status().message()).find("Address already in use"),
            std::string::npos);
}

}  // namespace
}  // namespace addend
