#include "lib/transport/inproc/factory.h"
#include "tests/conformance/conformance.h"

namespace addend {
namespace {

class InprocWorld : public World {
 public:
  std::shared_ptr<Transport> MakeTransport(EventLoop* loop) override {
    return MakeInprocTransport(loop, network_);
  }
  Address ListenAddress() override { return {.host = "server"}; }
  Address NobodyListens() override { return {.host = "nobody"}; }

 private:
  const std::shared_ptr<InprocNetwork> network_ = MakeInprocNetwork();
};

INSTANTIATE_TEST_SUITE_P(Inproc, TransportConformance,
                         testing::Values([] { return std::make_unique<InprocWorld>(); }));

TEST_P(TransportConformance, APayloadIsPassedByPointerAndLentUntilItsRelease) {
  Connect();
  accepted_.hold_payloads = true;
  here_->Run([&] { Send(link_, &connected_, "kept"); });
  ASSERT_TRUE(accepted_.WaitFor([&] { return accepted_.frames.size() == 2; }));
  EXPECT_EQ(static_cast<const void*>(accepted_.held[0].bytes().data()),
            static_cast<const void*>(payloads_.back()->data()));
  here_->Run([] {});
  EXPECT_EQ(connected_.dones, 1) << "only the first frame has been released";
  there_->Run([&] { accepted_.held.clear(); });
  EXPECT_TRUE(connected_.WaitFor([&] { return connected_.dones == 2; }));
}

}  // namespace
}  // namespace addend
