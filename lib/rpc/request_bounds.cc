#include "lib/rpc/request_bounds.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "google/protobuf/descriptor.h"
#include "lib/base/limits.h"
#include "lib/base/mutex.h"
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

// The bounds of a field.
struct Rule {
  const FieldDescriptor* field;
  size_t most_bytes;               // of a text
  size_t most_items;               // of a list
  const std::vector<Rule>* inner;  // of a message; else null
};
using Rules = std::vector<Rule>;  // of a type, without fields that have no bound

// The rules of each type of message, looked up once: a request may hold thousands of messages.
// Thread-safe.
class RuleBook {
 public:
  // `type`: of generated code, so that it lives as long as the process, like the answer.
  const Rules& Of(const pb::Descriptor& type) {
    const MutexLock lock(&mu_);
    return Find(type);
  }

 private:
  const Rules& Find(const pb::Descriptor& type) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto [found, is_new] = rules_.try_emplace(&type);
    if (!is_new) return found->second;
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor* const field = type.field(i);
      const auto kind = field->cpp_type();
      const bool is_message = kind == FieldDescriptor::CPPTYPE_MESSAGE;
      if (!field->is_repeated() && !is_message && kind != FieldDescriptor::CPPTYPE_STRING &&
          kind != FieldDescriptor::CPPTYPE_DOUBLE) {
        continue;
      }
      const Rules* const inner = is_message ? &Find(*field->message_type()) : nullptr;
      found->second.push_back({field, MostBytes(*field), MostItems(*field), inner});
    }
    return found->second;
  }

  Mutex mu_;
  // A map, whose values stay in place: a type may hold messages of its own type.
  std::map<const pb::Descriptor*, Rules> rules_ ABSL_GUARDED_BY(mu_);
};

absl::Status CheckText(const Rule& rule, const std::string& text) {
  return text.size() <= rule.most_bytes
             ? absl::OkStatus()
             : TooMuch(*rule.field, text.size(), rule.most_bytes, "bytes");
}

absl::Status CheckNumber(const FieldDescriptor& field, double number) {
  if (std::isfinite(number)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is %g, which is not a number", NameOf(field), number));
}

absl::Status CheckMessage(const pb::Message& message, const Rules& rules);

absl::Status CheckList(const pb::Message& message, const Rule& rule) {
  const FieldDescriptor& field = *rule.field;
  const pb::Reflection& reflection = *message.GetReflection();
  const int count = reflection.FieldSize(message, &field);
  if (static_cast<size_t>(count) > rule.most_items) {
    return TooMuch(field, static_cast<size_t>(count), rule.most_items, "items");
  }
  for (int i = 0; i < count; ++i) {
    absl::Status status;
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      std::string scratch;
      status = CheckText(rule, reflection.GetRepeatedStringReference(message, &field, i, &scratch));
    } else if (rule.inner != nullptr) {
      status = CheckMessage(reflection.GetRepeatedMessage(message, &field, i), *rule.inner);
    }
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CheckField(const pb::Message& message, const Rule& rule) {
  const FieldDescriptor& field = *rule.field;
  if (field.is_repeated()) return CheckList(message, rule);
  const pb::Reflection& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING: {
      std::string scratch;
      return CheckText(rule, reflection.GetStringReference(message, &field, &scratch));
    }
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return CheckNumber(field, reflection.GetDouble(message, &field));
    default:
      return reflection.HasField(message, &field)
                 ? CheckMessage(reflection.GetMessage(message, &field), *rule.inner)
                 : absl::OkStatus();
  }
}

absl::Status CheckMessage(const pb::Message& message, const Rules& rules) {
  for (const Rule& rule : rules) {
    if (absl::Status status = CheckField(message, rule); !status.ok()) return status;
  }
  return absl::OkStatus();
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
  static RuleBook* const rules = new RuleBook();  // calls may outlive static objects
  return CheckMessage(request, rules->Of(*request.GetDescriptor()));
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
