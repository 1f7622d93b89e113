#include "lib/rpc/request_bounds.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_format.h"
#include "google/protobuf/descriptor.h"
#include "lib/base/limits.h"
#include "lib/base/utf8.h"

namespace addend {
namespace {

namespace pb = google::protobuf;
using pb::FieldDescriptor;

struct Bound {
  std::string_view field;  // "Message.field"
  size_t most;             // bytes of each text
};
constexpr Bound kTexts[] = {
    {"TensorDescriptor.name", kMaxNameBytes},
    {"UndeclareRequest.names", kMaxNameBytes},
    {"AwaitedRound.name", kMaxNameBytes},
    {"AwaitedRound.participants", kMaxParticipantsBytes},
    {"TensorDescriptor.participants", kMaxParticipantsBytes},
    {"StalledRound.name", kMaxNameBytes},
    {"StalledRound.participants", kMaxParticipantsBytes},
    {"HeartbeatRequest.activity", kSentenceBytes},
    {"ColocatedBeat.activity", kSentenceBytes},
    {"HeartbeatRequest.links", kSentenceBytes},
    {"Incident.text", kSentenceBytes},
    {"RefusedTensor.reason", kSentenceBytes},
    {"ReportFailureRequest.reason", kSentenceBytes},
    {"ReportServerLostRequest.reason", kSentenceBytes},
    {"Recollection.reason", kSentenceBytes},
    {"RelayTrouble.reason", kSentenceBytes},
};
constexpr Bound kLists[] = {
    {"DeclareRequest.numbers", kMaxTensors},
    {"DeclareRequest.tensors", kMaxTensors},
    {"UndeclareRequest.names", kMaxTensors},
    {"AckReservationRequest.refused", kMaxTensors},
    {"HeartbeatRequest.paces", kMemberItems},
    {"HeartbeatRequest.incidents", 100},
    {"HeartbeatRequest.troubles", 16},
    {"ColocatedBeat.troubles", 16},
    {"StalledRound.missing", kMaxLocalSize},
    {"WatchRequest.announced", kMemberItems},
    {"RegisterServerRequest.announced", kMemberItems},
    {"Recollection.tensors", kMaxTensors},
    {"Recollection.undeclared", kMaxTensors},
    {"Recollection.removed", kMemberItems},
    {"Recollection.lost_nodes", kMaxNodes},
    {"TensorPlan.servers", kMaxPartitions},
    {"TensorPlan.shards", kMaxPartitions},
    {"TensorPlan.nics", kMaxPartitions},
    {"TensorPlan.versions", kMaxPartitions},
    {"TensorPlan.moves", kMaxPartitions},
};

std::string NameOf(const FieldDescriptor& field) {
  return field.containing_type()->name() + "." + field.name();
}

template <size_t kSize>
size_t Find(const Bound (&bounds)[kSize], const FieldDescriptor& field, size_t usual) {
  const std::string name = NameOf(field);
  for (const Bound& bound : bounds) {
    if (bound.field == name) return bound.most;
  }
  return usual;
}

absl::Status TooMuch(const FieldDescriptor& field, size_t has, size_t most, const char* unit) {
  return absl::InvalidArgumentError(
      absl::StrFormat("%s has %d %s, more than %d", NameOf(field), has, unit, most));
}

absl::Status CheckText(const FieldDescriptor& field, const std::string& text) {
  const size_t most = MostBytes(field);
  return text.size() <= most ? absl::OkStatus() : TooMuch(field, text.size(), most, "bytes");
}

absl::Status CheckNumber(const FieldDescriptor& field, double number) {
  if (std::isfinite(number)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is %g, which is not a number", NameOf(field), number));
}

absl::Status CheckList(const pb::Message& message, const FieldDescriptor& field) {
  const pb::Reflection& reflection = *message.GetReflection();
  const int count = reflection.FieldSize(message, &field);
  const size_t most = MostItems(field);
  if (static_cast<size_t>(count) > most) {
    return TooMuch(field, static_cast<size_t>(count), most, "items");
  }
  for (int i = 0; i < count; ++i) {
    absl::Status status;
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      std::string scratch;
      status =
          CheckText(field, reflection.GetRepeatedStringReference(message, &field, i, &scratch));
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      status = CheckBounds(reflection.GetRepeatedMessage(message, &field, i));
    }
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CheckField(const pb::Message& message, const FieldDescriptor& field) {
  if (field.is_repeated()) return CheckList(message, field);
  const pb::Reflection& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING: {
      std::string scratch;
      return CheckText(field, reflection.GetStringReference(message, &field, &scratch));
    }
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return CheckNumber(field, reflection.GetDouble(message, &field));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return reflection.HasField(message, &field)
                 ? CheckBounds(reflection.GetMessage(message, &field))
                 : absl::OkStatus();
    default:
      return absl::OkStatus();
  }
}

// A text field whose content is a sentence and may be cut. Repeated string fields hold names;
// sentences in lists are fields of messages.
struct Sentence {
  pb::Message* message;
  const FieldDescriptor* field;

  void Shorten(size_t most) const {
    const pb::Reflection& reflection = *message->GetReflection();
    std::string text = reflection.GetString(*message, field);
    if (text.size() > most) reflection.SetString(message, field, Shortened(text, most));
  }
};

void Collect(pb::Message* message, std::vector<Sentence>* sentences) {
  const pb::Reflection& reflection = *message->GetReflection();
  std::vector<const FieldDescriptor*> set;
  reflection.ListFields(*message, &set);
  for (const FieldDescriptor* field : set) {
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      if (MostBytes(*field) == kSentenceBytes) sentences->push_back({message, field});
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      if (!field->is_repeated()) Collect(reflection.MutableMessage(message, field), sentences);
      for (int i = 0; field->is_repeated() && i < reflection.FieldSize(*message, field); ++i) {
        Collect(reflection.MutableRepeatedMessage(message, field, i), sentences);
      }
    }
  }
}

}  // namespace

// Unknown fields are not checked: this build does not read them.
absl::Status CheckBounds(const pb::Message& request) {
  const pb::Descriptor& type = *request.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    if (absl::Status status = CheckField(request, *type.field(i)); !status.ok()) return status;
  }
  return absl::OkStatus();
}

void ShortenSentences(pb::Message* request) {
  std::vector<Sentence> sentences;
  Collect(request, &sentences);
  if (sentences.empty()) return;
  const size_t most = std::min(kSentenceBytes, kMaxRequestBytes / 2 / sentences.size());
  for (const Sentence& sentence : sentences) sentence.Shorten(most);
}

size_t MostBytes(const FieldDescriptor& field) { return Find(kTexts, field, kUsualTextBytes); }
size_t MostItems(const FieldDescriptor& field) { return Find(kLists, field, kUsualItems); }

}  // namespace addend
