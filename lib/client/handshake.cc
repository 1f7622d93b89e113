#include "lib/client/handshake.h"

#include <chrono>
#include <string>

#include "lib/client/ipc.h"

namespace addend::client {
namespace {

constexpr int kSayEveryMs = 10000;

int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Error ReadReply(const Packet& packet, const std::string& path, Place* place) {
  const ipc::Message& m = packet.message;
  if (m.code != 0) return FromAgent(m.code, packet.text);
  *place = {m.rank, m.size, m.local_rank, m.local_size, m.node_rank, m.num_nodes};
  if (m.size < 1 || m.rank < 0 || m.rank >= m.size || m.num_nodes < 1) {
    return MakeError(ADDEND_ERROR_INTERNAL, "the agent at %s made this process rank %d of %d",
                     path.c_str(), m.rank, m.size);
  }
  return {};
}

// *finished: the agent has decided, and the returned error is its decision.
Error OnPacket(const Packet& packet, const std::string& path, ProgressPrinter* progress,
               Place* place, bool* finished) {
  *finished = packet.message.type != ipc::Type::kProgress;
  switch (packet.message.type) {
    case ipc::Type::kProgress:
      progress->Print(packet.text);
      return {};
    case ipc::Type::kInitReply:
      return ReadReply(packet, path, place);
    case ipc::Type::kFailure:
      return FromAgent(packet.message.code, packet.text);
    default:
      return MakeError(ADDEND_ERROR_INTERNAL,
                       "the agent at %s sent a message of type %u before the job had started",
                       path.c_str(), static_cast<unsigned>(packet.message.type));
  }
}

}  // namespace

void ProgressPrinter::Print(const std::string& text) {
  const int64_t now_ms = NowMs();
  if (text.empty() || (text == last_ && now_ms - last_ms_ < kSayEveryMs)) return;
  last_ = text;
  last_ms_ = now_ms;
  if (first_ms_ == 0) first_ms_ = now_ms;
  Say(text + Format(", %lld s", static_cast<long long>((now_ms - first_ms_) / 1000)));
}

Error JoinJob(const Settings& settings, std::unique_ptr<AgentSocket>* socket, Place* place) {
  Error error = AgentSocket::Connect(settings.socket, settings.connect_timeout_s, socket);
  if (!error.ok()) return error;
  ipc::Message hello;
  hello.type = ipc::Type::kInit;
  hello.rank = settings.rank;
  hello.size = settings.size;
  hello.local_rank = settings.local_rank;
  hello.local_size = settings.local_size;
  (*socket)->Send(hello, {}, settings.job);

  ProgressPrinter progress;
  const std::string& path = settings.socket;
  for (bool finished = false; !finished;) {
    Packet packet;
    AgentSocket::Event event;
    error = (*socket)->Receive(kSayEveryMs, &packet, &event);
    if (!error.ok()) return error;
    if (event == AgentSocket::Event::kTimeout) {
      progress.Print(Format("waiting for the agent at %s to answer", path.c_str()));
    } else if (event == AgentSocket::Event::kClosed) {
      return MakeError(ADDEND_ERROR_PEER_LOST,
                       "the agent at %s closed the connection before the job had started; its log "
                       "says why",
                       path.c_str());
    } else {
      error = OnPacket(packet, path, &progress, place, &finished);
      if (!error.ok()) return error;
    }
  }
  return {};
}

}  // namespace addend::client
