#include "tests/simulation/sockets.h"

#include <unistd.h>

#include <utility>

#include "lib/client/fork_guard.h"

namespace addend::simulation {
namespace {

constexpr absl::Duration kDelay = absl::Microseconds(5);

}  // namespace

void TrainerSocket::Send(const ipc::Encoded& message) {
  if (end == nullptr || trainer == nullptr) return;
  struct Copy {
    ipc::Message fixed;
    std::vector<int64_t> dims;
    std::string text;
  };
  auto copy = std::make_shared<Copy>(
      Copy{message.fixed, {message.dims.begin(), message.dims.end()}, std::string(message.text)});
  copy->fixed.dims = static_cast<uint32_t>(copy->dims.size());
  copy->fixed.text_bytes = static_cast<uint32_t>(copy->text.size());
  // The agent's process is that of its loop, which may be gone by then.
  trainer->world()->After(kDelay, [socket = end->socket(), copy] {
    if (socket->end == nullptr) return;
    socket->end->loop()->Do([socket, copy] {
      if (socket->end == nullptr) return;
      socket->end->OnMessage({.fixed = copy->fixed, .dims = copy->dims, .text = copy->text});
    });
  });
}

void TrainerSocket::Close() {
  if (trainer == nullptr) return;
  World* const world = trainer->world();
  trainer = nullptr;
  readable = nullptr;
  inbox.clear();
  if (end == nullptr) return;
  world->After(kDelay, [socket = end->socket()] {
    if (socket->end == nullptr) return;
    socket->end->loop()->Do([socket] {
      if (socket->end != nullptr) socket->end->OnHangUp();
    });
  });
}

TrainerEnd::TrainerEnd(Loop* loop, TrainerEvents* events, std::function<void(TrainerEnd*)> gone)
    : loop_(loop), events_(events), gone_(std::move(gone)) {
  socket_->end = this;
}

TrainerEnd::~TrainerEnd() { socket_->end = nullptr; }

void TrainerEnd::OnMessage(const ipc::Encoded& message) {
  if (closing_) return;
  const absl::Status status = events_->OnMessage(this, message, UniqueFd());
  if (!status.ok()) Close(status);
}

void TrainerEnd::OnHangUp() {
  Close(absl::UnavailableError("the trainer's end of the socket closed"));
}

void TrainerEnd::Close(absl::Status why) {
  if (closing_) return;
  closing_ = true;
  TellHungUp();
  loop_->Defer([socket = socket_, why = std::move(why)] {
    TrainerEnd* const end = socket->end;
    if (end == nullptr) return;
    end->events_->OnTrainerGone(end, why);
    end->gone_(end);
  });
}

void TrainerEnd::Hang() { TellHungUp(); }

void TrainerEnd::TellHungUp() {
  World* const world = loop_->process()->world();
  world->After(kDelay, [socket = socket_] {
    if (socket->trainer == nullptr) return;
    socket->trainer->Do([socket] {
      if (socket->trainer == nullptr) return;
      socket->hung_up = true;
      if (socket->readable) socket->readable();
    });
  });
}

void TrainerEnd::Write(const ipc::Encoded& message,
                       std::vector<std::shared_ptr<Segment>> segments) {
  if (closing_) return;
  auto packet = std::make_shared<client::Packet>();
  packet->message = message.fixed;
  packet->message.text_bytes = static_cast<uint32_t>(message.text.size());
  packet->text = message.text;
  for (const auto& segment : segments) {
    const client::ForkLock lock;
    packet->fds.emplace_back(::dup(segment->fd()), lock);
  }
  loop_->process()->world()->After(kDelay, [socket = socket_, packet] {
    if (socket->trainer == nullptr) return;
    socket->trainer->Do([socket, packet] {
      if (socket->trainer == nullptr) return;
      socket->inbox.push_back(std::move(*packet));
      if (socket->readable) socket->readable();
    });
  });
}

}  // namespace addend::simulation
