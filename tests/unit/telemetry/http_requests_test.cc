#include "lib/telemetry/http_requests.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/fd.h"

namespace addend {
namespace {

TEST(CheckHeadTest, KeepsOnlyTheHeadersThatChangeAnAnswer) {
  const HttpHead head = CheckHead(
      "GET /a HTTP/1.1\r\nHost: a\r\nRange: bytes=0-\r\naccept-encoding: gzip\r\nConnection: "
      "close\r\nContent-Length: 0\r\n\r\n");
  EXPECT_EQ(head.refusal, 0);
  EXPECT_EQ(head.text, "GET /a HTTP/1.1\r\naccept-encoding: gzip\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(CheckHead("HEAD / HTTP/1.1\r\n\r\n").text, "HEAD / HTTP/1.1\r\n\r\n");
}

TEST(CheckHeadTest, RefusesOtherMethodsAndBodies) {
  EXPECT_EQ(CheckHead("POST / HTTP/1.1\r\n\r\n").refusal, 405);
  EXPECT_EQ(CheckHead("\r\n\r\n").refusal, 405);
  EXPECT_EQ(CheckHead("GET / HTTP/1.1\r\ncontent-length: 1\r\n\r\n").refusal, 413);
  EXPECT_EQ(CheckHead("GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n").refusal, 413);
}

TEST(CheckHeadTest, RefusesTooMuch) {
  std::string head = "GET / HTTP/1.1\r\n";
  for (size_t i = 0; i < kMaxHttpHeaders; ++i) head += "A: b\r\n";
  EXPECT_EQ(CheckHead(head + "\r\n").refusal, 0);
  EXPECT_EQ(CheckHead(head + "A: b\r\n\r\n").refusal, 431);
  const std::string large(kMaxHttpHeadBytes, 'a');
  EXPECT_EQ(CheckHead("GET / HTTP/1.1\r\nA: " + large + "\r\n\r\n").refusal, 431);
  EXPECT_EQ(CheckHead(large + "a").refusal, 431);
}

TEST(CheckHeadTest, RefusesLinesWithinLines) {
  EXPECT_EQ(CheckHead("GET / HTTP/1.1\r\nConnection: x\nRange: bytes=0-\r\n\r\n").refusal, 400);
  EXPECT_EQ(CheckHead("GET / HTTP/1.1\rRange: bytes=0-\r\n\r\n").refusal, 400);
}

TEST(CheckHeadTest, TakesABodyOfALengthWhereThereIsALimit) {
  const HttpHead head = CheckHead(
      "POST /a HTTP/1.1\r\nContent-Type: multipart/form-data\r\ncontent-length: 5\r\n\r\n", 5);
  EXPECT_EQ(head.refusal, 0);
  EXPECT_EQ(head.body, 5u);
  EXPECT_EQ(head.text, "POST /a HTTP/1.1\r\nContent-Length: 5\r\n\r\n");
  EXPECT_EQ(CheckHead("POST / HTTP/1.1\r\n\r\n", 5).body, 0u);
  EXPECT_EQ(CheckHead("POST / HTTP/1.1\r\nContent-Length: 6\r\n\r\n", 5).refusal, 413);
  EXPECT_EQ(CheckHead("POST / HTTP/1.1\r\nContent-Length: +5\r\n\r\n", 5).refusal, 413);
  EXPECT_EQ(CheckHead("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 5).refusal, 411);
  const char* const twice = "POST / HTTP/1.1\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n";
  EXPECT_EQ(CheckHead(twice, 5).refusal, 400);
  EXPECT_EQ(CheckHead("PUT / HTTP/1.1\r\nContent-Length: 5\r\n\r\n", 5).refusal, 405);
  EXPECT_EQ(CheckHead("GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\n", 5).refusal, 413);
}

// Returns a connection that has sent the beginning of a request.
UniqueFd BeginRequest(int port) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(::send(socket.get(), "GET /", 5, MSG_NOSIGNAL), 5);
  return socket;
}

// Waits for the end of a connection: true if it comes before any byte.
bool Ends(const UniqueFd& client) {
  char byte = 0;
  return ::recv(client.get(), &byte, 1, 0) <= 0 && errno != EAGAIN;
}

class HttpRequestsTest : public ::testing::Test {
 protected:
  HttpRequestsTest(std::chrono::milliseconds patience, std::chrono::milliseconds most)
      : server_({patience, most, /*threads=*/2}),
        port_(server_.bind_to_any_port("127.0.0.1")),
        thread_([this] { server_.listen_after_bind(); }) {
    while (!server_.is_running()) std::this_thread::yield();
  }
  ~HttpRequestsTest() override {
    server_.stop();
    server_.EndConnections();
    thread_.join();
  }

  HttpRequests server_;
  const int port_;
  std::thread thread_;
};

struct PatientHttpRequestsTest : HttpRequestsTest {
  PatientHttpRequestsTest() : HttpRequestsTest(std::chrono::hours(1), std::chrono::hours(1)) {}
};

TEST_F(PatientHttpRequestsTest, EndConnectionsEndsServedAndWaitingConnections) {
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 5; ++i) clients.push_back(BeginRequest(port_));
  server_.EndConnections();
  for (const UniqueFd& client : clients) EXPECT_TRUE(Ends(client));
}

struct StrictHttpRequestsTest : HttpRequestsTest {
  StrictHttpRequestsTest()
      : HttpRequestsTest(std::chrono::hours(1), std::chrono::milliseconds(20)) {}
};

TEST_F(StrictHttpRequestsTest, EndsConnectionsAtTheirDeadline) {
  const UniqueFd client = BeginRequest(port_);
  EXPECT_TRUE(Ends(client));
}

}  // namespace
}  // namespace addend
