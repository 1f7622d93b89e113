#include "lib/rpc/status.h"

#include <google/protobuf/any.pb.h>
#include <google/protobuf/unknown_field_set.h>
#include <google/protobuf/wrappers.pb.h>

#include <cctype>
#include <optional>

#include "lib/base/failure.h"
#include "lib/base/strings.h"

namespace addend {
namespace {

// Field numbers of google.rpc.Status, whose generated code Debian does not package.
constexpr int kCodeField = 1;
constexpr int kMessageField = 2;
constexpr int kDetailsField = 3;

std::string EncodeDetails(const absl::Status& status, int exit_status) {
  google::protobuf::UInt32Value value;
  value.set_value(static_cast<uint32_t>(exit_status));
  google::protobuf::Any any;
  any.PackFrom(value);
  google::protobuf::UnknownFieldSet fields;
  fields.AddVarint(kCodeField, static_cast<uint64_t>(status.raw_code()));
  fields.AddLengthDelimited(kMessageField, Message(status));
  fields.AddLengthDelimited(kDetailsField, any.SerializeAsString());
  std::string text;
  fields.SerializeToString(&text);
  return text;
}

// Returns nullopt if the details are not Addend's.
std::optional<int> DecodeDetails(const std::string& text) {
  google::protobuf::UnknownFieldSet fields;
  if (text.empty() || !fields.ParseFromString(text)) return std::nullopt;
  for (int i = 0; i < fields.field_count(); ++i) {
    const auto& field = fields.field(i);
    if (field.number() != kDetailsField ||
        field.type() != google::protobuf::UnknownField::TYPE_LENGTH_DELIMITED) {
      continue;
    }
    google::protobuf::Any any;
    google::protobuf::UInt32Value value;
    if (any.ParseFromString(field.length_delimited()) && any.UnpackTo(&value) &&
        value.value() > 0 && value.value() < 256) {
      return static_cast<int>(value.value());
    }
  }
  return std::nullopt;
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.raw_code()), Message(status),
                      EncodeDetails(status, ExitCodeOf(status)));
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  if (const auto exit_status = DecodeDetails(status.error_details())) {
    return WithExitStatus(std::move(result), *exit_status);
  }
  return result;
}

bool IsUnreachable(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsCancelled(status);
}

std::string ShortReason(const absl::Status& status) {
  if (absl::IsDeadlineExceeded(status)) return "no answer";
  std::string reason = Message(status);
  if (const size_t colon = reason.rfind(": "); colon != std::string::npos) {
    reason = reason.substr(colon + 2);
  }
  if (reason.size() > 1 && std::islower(static_cast<unsigned char>(reason[1]))) {
    reason[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(reason[0])));
  }
  return reason.empty() ? "no reason given" : reason;
}

}  // namespace addend
