#include "bench/fake_calls.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/generic/generic_stub.h>

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "lib/rpc/client.h"
#include "lib/rpc/status.h"

namespace addend {
namespace {

std::string PathOf(const char* method) { return absl::StrCat("/addend.v1.Scheduler/", method); }

}  // namespace

void Board::Fail(absl::Status why) {
  const MutexLock lock(&mu_);
  if (failure_.ok()) failure_ = std::move(why);
  changed_.NotifyAll();
}

void Board::Note() {
  const MutexLock lock(&mu_);
  changed_.NotifyAll();
}

absl::Status Board::Await(absl::Duration patience, const std::function<bool()>& done,
                          const std::function<std::string()>& missing) {
  const auto until = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(patience);
  const MutexLock lock(&mu_);
  while (failure_.ok() && !done()) {
    if (changed_.WaitUntil(&mu_, until) || done()) continue;
    return absl::DeadlineExceededError(
        absl::StrFormat("after %s: %s", absl::FormatDuration(patience), missing()));
  }
  return failure_;
}

void Board::AwaitEnd(const std::function<bool()>& done) {
  const MutexLock lock(&mu_);
  while (!done()) changed_.Wait(&mu_);
}

void WatchStream::Start(const std::shared_ptr<grpc::Channel>& channel, const char* method,
                        v1::MemberId member) {
  v1::WatchRequest request;
  *request.mutable_member() = std::move(member);
  const grpc::Slice slice(request.SerializeAsString());
  request_ = grpc::ByteBuffer(&slice, 1);
  grpc::GenericStub(channel).PrepareBidiStreamingCall(&context_, PathOf(method),
                                                      grpc::StubOptions(), this);
  StartWriteLast(&request_, grpc::WriteOptions());
  StartRead(&update_);
  StartCall();
}

void WatchStream::Stop() {
  stopped_ = true;
  context_.TryCancel();
  const MutexLock lock(&mu_);
  while (!ended_) over_.Wait(&mu_);
}

void WatchStream::OnReadDone(bool ok) {
  if (!ok) return;
  std::string bytes;
  std::vector<grpc::Slice> slices;
  if (update_.Dump(&slices).ok()) {
    for (const grpc::Slice& slice : slices) {
      bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
  }
  bytes_ += bytes.size();
  on_update_(bytes);
  StartRead(&update_);
}

void WatchStream::OnDone(const grpc::Status& status) {
  if (!stopped_) on_end_(FromGrpc(status));
  const MutexLock lock(&mu_);
  ended_ = true;
  over_.NotifyAll();
}

BriefUpdate ReadBriefly(const std::string& bytes) {
  BriefUpdate update;
  using google::protobuf::internal::WireFormatLite;
  google::protobuf::io::CodedInputStream in(reinterpret_cast<const uint8_t*>(bytes.data()),
                                            static_cast<int>(bytes.size()));
  while (const uint32_t tag = in.ReadTag()) {
    uint64_t value = 0;
    const int field = WireFormatLite::GetTagFieldNumber(tag);
    if (WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_VARINT) {
      if (!in.ReadVarint64(&value)) break;
      if (field == v1::NodeUpdate::kGenerationFieldNumber) {
        update.generation = static_cast<uint32_t>(value);
      }
      if (field == v1::NodeUpdate::kChangeFieldNumber) update.change = value;
      if (field == v1::NodeUpdate::kStateFieldNumber) {
        update.state = static_cast<v1::JobState>(value);
      }
    } else if (field == v1::NodeUpdate::kReasonFieldNumber) {
      if (!WireFormatLite::ReadString(&in, &update.reason)) break;
    } else if (field == v1::NodeUpdate::kTensorsFieldNumber) {
      uint32_t size = 0;
      if (!in.ReadVarint32(&size)) break;
      const auto end = in.PushLimit(static_cast<int>(size));
      if (in.ReadTag() != 0 && in.ReadVarint64(&value)) {  // its first field is its number
        update.tensors.push_back(static_cast<uint32_t>(value));
      }
      in.Skip(in.BytesUntilLimit());
      in.PopLimit(end);
    } else if (!WireFormatLite::SkipField(&in, tag)) {
      break;
    }
  }
  return update;
}

void CallWithSlices(const std::shared_ptr<grpc::Channel>& channel, const char* method,
                    const std::vector<grpc::Slice>& request, absl::Duration deadline,
                    std::function<void(absl::Status)> done) {
  struct Call {
    grpc::ClientContext context;
    grpc::ByteBuffer request, response;
  };
  const auto call = std::make_shared<Call>();
  call->request = grpc::ByteBuffer(request.data(), request.size());
  SetDeadline(&call->context, deadline);
  grpc::GenericStub(channel).UnaryCall(
      &call->context, PathOf(method), grpc::StubOptions(), &call->request, &call->response,
      [call, done = std::move(done)](const grpc::Status& status) { done(FromGrpc(status)); });
}

}  // namespace addend
