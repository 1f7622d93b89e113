// The beginning of a connection: INIT, progress while the job waits for ranks, and the reply.
#include "lib/client/handshake.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "lib/client/messages.h"

namespace addend::client {
namespace {

constexpr int kSayEveryMs = 10000;
constexpr int kQuietMs = 2000;  // at the start

Error ReadReply(const Packet& packet, const Settings& settings, Place* place) {
  const auto reply = packet.Decode<ipc::InitReplyMessage>();
  if (reply.code != 0) return FromAgent(reply.code, reply.reason);
  const int32_t together = settings.local_size;
  if (reply.size < 1 || reply.rank < 0 || reply.rank >= reply.size || reply.num_nodes < 1 ||
      reply.local_size < together || reply.local_size % together != 0) {
    return MakeError(ADDEND_ERROR_INTERNAL,
                     "the agent at %s made this process rank %d of %d, one of %d of its node",
                     settings.socket.c_str(), reply.rank, reply.size, reply.local_size);
  }
  *place = {.rank = reply.rank,
            .size = reply.size,
            .local_rank = settings.local_rank,
            .local_size = together,
            .node_rank = reply.rank / together,
            .num_nodes = reply.size / together,
            .nodes_per_agent = reply.local_size / together};
  return {};
}

// `*finished`: the agent has decided, and the returned error is its decision.
Error OnPacket(const Packet& packet, const Settings& settings, ProgressPrinter* progress,
               Place* place, bool* finished) {
  *finished = packet.message.type != ipc::Type::kProgress;
  switch (packet.message.type) {
    case ipc::Type::kProgress:
      progress->Print(packet.Decode<ipc::ProgressMessage>().text);
      return {};
    case ipc::Type::kInitReply:
      return ReadReply(packet, settings, place);
    case ipc::Type::kFailure: {
      const auto failure = packet.Decode<ipc::FailureMessage>();
      return FromAgent(failure.code, failure.reason);
    }
    default:
      return MakeError(ADDEND_ERROR_INTERNAL,
                       "the agent at %s sent a message of type %u before the job had started",
                       settings.socket.c_str(), static_cast<unsigned>(packet.message.type));
  }
}

}  // namespace

int64_t ProgressPrinter::SteadyNowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void ProgressPrinter::Print(const std::string& text) {
  const int64_t now_ms = now_ms_();
  if (first_ms_ == 0) first_ms_ = now_ms;
  if (when_ == When::kStart && now_ms - first_ms_ < kQuietMs) {
    held_back_ = text;
  } else {
    held_back_.clear();
    PrintAt(now_ms, text);
  }
}

int ProgressPrinter::HeldBackForMs() const {
  if (held_back_.empty()) return -1;
  return static_cast<int>(std::max<int64_t>(0, first_ms_ + kQuietMs - now_ms_()));
}

void ProgressPrinter::Release() {
  const std::string text = std::exchange(held_back_, {});
  PrintAt(now_ms_(), text);
}

void ProgressPrinter::PrintAt(int64_t now_ms, const std::string& text) {
  if (text.empty() || (text == last_ && now_ms - last_ms_ < kSayEveryMs)) return;
  last_ = text;
  last_ms_ = now_ms;
  if (when_ == When::kRunning) return Say(text);
  Say(text + Format(", %lld s", static_cast<long long>((now_ms - first_ms_) / 1000)));
}

namespace {

double SteadyNowS() { return static_cast<double>(ProgressPrinter::SteadyNowMs()) / 1e3; }

// Of a connection. `*closed`: the agent has ended it and decided nothing.
Error Introduce(const Settings& settings, ProgressPrinter* progress, AgentSocket* socket,
                Place* place, bool* closed) {
  const ipc::InitMessage init{settings.rank, settings.size, settings.local_rank,
                              settings.local_size, settings.job};
  socket->Send(init.Encode());
  const std::string& path = settings.socket;
  for (bool finished = false; !finished;) {
    Packet packet;
    AgentSocket::Event event;
    const int held_back_ms = progress->HeldBackForMs();
    if (held_back_ms == 0) {
      progress->Release();
      continue;
    }
    Error error = socket->Receive(held_back_ms > 0 ? held_back_ms : kSayEveryMs, &packet, &event);
    if (!error.ok()) return error;
    if (event == AgentSocket::Event::kTimeout) {
      if (held_back_ms > 0) continue;
      progress->Print(Format("waiting for the agent at %s to answer", path.c_str()));
    } else if (event == AgentSocket::Event::kClosed) {
      *closed = true;
      return MakeError(ADDEND_ERROR_PEER_LOST,
                       "the agent at %s closed the connection before the job had started; its log "
                       "says why",
                       path.c_str());
    } else {
      error = OnPacket(packet, settings, progress, place, &finished);
      if (!error.ok()) return error;
      if (finished && !packet.fds.empty()) return socket->UseRings(packet.fds[0].get());
    }
  }
  return {};
}

}  // namespace

Error JoinJob(const Settings& settings, std::unique_ptr<AgentSocket>* socket, Place* place) {
  ProgressPrinter progress(ProgressPrinter::When::kStart);
  Error error = AgentSocket::Connect(settings.socket, settings.connect_timeout_s, socket);
  if (!error.ok()) return error;
  double gone_s = -1;  // the time of the first end of several; negative: there was no end yet
  for (;;) {
    const double began_s = SteadyNowS();
    bool closed = false;
    error = Introduce(settings, &progress, socket->get(), place, &closed);
    if (!closed) return error;
    const double now_s = SteadyNowS();
    if (gone_s < 0 || now_s - began_s >= settings.connect_timeout_s) gone_s = now_s;
    const double left_s = gone_s + settings.connect_timeout_s - now_s;
    if (left_s <= 0) return error;
    progress.Print(
        Format("the agent at %s closed the connection; connecting again", settings.socket.c_str()));
    ::poll(nullptr, 0, kRetryMs);
    // The former error says more than that of an agent that stays away.
    if (!AgentSocket::Connect(settings.socket, left_s, socket).ok()) return error;
  }
}

}  // namespace addend::client
