// Stands for gRPC under a streaming handler, without a connection: takes the handler's messages,
// and ends the call when the handler ends or its client goes.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <optional>
#include <utility>
#include <vector>

#include "lib/base/mutex.h"

namespace addend::fuzz {

template <typename Message>
class Watch final : public grpc::ServerCallbackWriter<Message> {
 public:
  explicit Watch(grpc::ServerWriteReactor<Message>* reactor) : reactor_(reactor) {
    this->BindReactor(reactor);
  }
  ~Watch() override {
    Read();
    reactor_->OnCancel();
    reactor_->OnDone();  // must be last
  }

  // The messages since the last Read().
  std::vector<Message> Read() {
    std::vector<Message> all;
    while (const Message* message = TakeWritten()) {
      all.push_back(*message);
      reactor_->OnWriteDone(true);  // writes the next message
    }
    return all;
  }

 private:
  const Message* TakeWritten() {
    MutexLock lock(&mu_);
    return std::exchange(written_, nullptr);
  }
  void Write(const Message* message, grpc::WriteOptions) override {
    MutexLock lock(&mu_);
    written_ = message;
  }
  void Finish(grpc::Status) override {}
  void SendInitialMetadata() override {}
  void WriteAndFinish(const Message*, grpc::WriteOptions, grpc::Status) override {}
  grpc::internal::ServerReactor* reactor() override { return reactor_; }
  void CallOnDone() override {}

  grpc::ServerWriteReactor<Message>* const reactor_;
  Mutex mu_;
  const Message* written_ ABSL_GUARDED_BY(mu_) = nullptr;
};

template <typename Message>
class Conversation final : public grpc::ServerCallbackReaderWriter<Message, Message> {
 public:
  explicit Conversation(grpc::ServerBidiReactor<Message, Message>* reactor) : reactor_(reactor) {
    this->BindReactor(reactor);
  }
  ~Conversation() override {
    Hear();
    reactor_->OnReadDone(false);
    reactor_->OnDone();  // must be last
  }

  // Delivers a message of the client.
  void Say(const Message& message) {
    *room_ = message;
    reactor_->OnReadDone(true);
  }
  // The number of the handler's messages since the last Hear().
  int Hear() {
    int heard = 0;
    while (TakeWritten()) {
      ++heard;
      reactor_->OnWriteDone(true);
    }
    return heard;
  }

 private:
  bool TakeWritten() {
    MutexLock lock(&mu_);
    return std::exchange(written_, false);
  }
  void Read(Message* room) override { room_ = room; }
  void Write(const Message*, grpc::WriteOptions) override {
    MutexLock lock(&mu_);
    written_ = true;
  }
  void Finish(grpc::Status) override {}
  void SendInitialMetadata() override {}
  void WriteAndFinish(const Message*, grpc::WriteOptions, grpc::Status) override {}
  grpc::internal::ServerReactor* reactor() override { return reactor_; }
  void CallOnDone() override {}

  grpc::ServerBidiReactor<Message, Message>* const reactor_;
  Message* room_ = nullptr;
  Mutex mu_;
  bool written_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace addend::fuzz
