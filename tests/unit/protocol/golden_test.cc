// The bytes of every frame, message and record of every version that this build speaks, in
// tests/data/protocol: their meaning must not change. Two lines each: the name with the bytes, and
// the meaning.
//
// For a new version: ADDEND_WRITE_GOLDEN=1 build/tests/protocol_test writes its files, and adds
// messages that are new to an unreleased version. It never changes existing lines.
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "lib/base/hex.h"
#include "lib/base/version.h"
#include "lib/client/ipc.h"
#include "lib/wire/frame.h"
#include "proto/addend/v1/scheduler.pb.h"
#include "proto/addend/v1/scheduler_store.pb.h"
#include "proto/addend/v1/summation.pb.h"

namespace addend {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

struct Entry {
  std::string bytes;
  std::string meaning;
};
using Entries = std::map<std::string, Entry>;

std::string PathOf(const std::string& protocol, uint32_t version) {
  return absl::StrFormat("%s/%s-%d.txt", ADDEND_GOLDEN, protocol, version);
}

Entries Read(const std::string& path) {
  Entries entries;
  std::ifstream file(path);
  std::string name;
  std::string hex;
  std::string meaning;
  while (file >> name >> hex && file.ignore() && std::getline(file, meaning)) {
    entries[name] = {BytesFromHex(hex == "-" ? "" : hex).value(), meaning};
  }
  return entries;
}

void Write(const std::string& path, const Entries& entries) {
  std::ofstream file(path);
  for (const auto& [name, entry] : entries) {
    const std::string hex = absl::BytesToHexString(entry.bytes);
    file << name << " " << (hex.empty() ? "-" : hex) << "\n" << entry.meaning << "\n";
  }
}

// `now`: all that the newest version has, as this build writes it. `meaning`: of bytes that were
// written before.
void Check(const std::string& protocol, const VersionRange& range, const Entries& now,
           const std::function<std::string(const std::string& name, const std::string&)>& meaning) {
  const std::string newest = PathOf(protocol, range.newest);
  Entries stored = Read(newest);
  if (std::getenv("ADDEND_WRITE_GOLDEN") != nullptr) {
    stored.insert(now.begin(), now.end());
    Write(newest, stored);
  }
  for (const auto& [name, entry] : now) {
    EXPECT_TRUE(stored.contains(name)) << name << " is not in " << newest;
  }
  for (uint32_t version = range.oldest; version <= range.newest; ++version) {
    const Entries kept = Read(PathOf(protocol, version));
    EXPECT_FALSE(kept.empty()) << PathOf(protocol, version);
    for (const auto& [name, entry] : kept) {
      EXPECT_EQ(meaning(name, entry.bytes), entry.meaning) << name << " of version " << version;
    }
  }
}

// ---- frames ----
std::string MeaningOf(const FrameHeader& h) {
  return absl::StrFormat(
      "version=%d type=%s flags=%d dtype=%d op=%d encoding=%d job=%d generation=%d sender=%d "
      "incarnation=%d plan_version=%d partition=%d round=%d priority=%d contributors=%d "
      "payload_bytes=%d uncompressed_bytes=%d payload_crc32c=%d detail=%d",
      h.version, Name(h.type), h.flags, static_cast<int>(h.dtype), static_cast<int>(h.op),
      static_cast<int>(h.encoding), h.job.value(), h.generation.value(), h.sender,
      h.incarnation.value(), h.plan_version.value(), h.partition.value(), h.round.value(),
      h.priority, h.contributors, h.payload_bytes, h.uncompressed_bytes, h.payload_crc32c,
      h.detail);
}

std::string MeaningOfFrame(const std::string&, const std::string& bytes) {
  EncodedHeader header;
  if (bytes.size() != header.size()) return "not a header";
  std::memcpy(header.data(), bytes.data(), header.size());
  const auto decoded = DecodeHeader(header);
  return decoded.ok() ? MeaningOf(*decoded) : std::string(decoded.status().message());
}

TEST(GoldenTest, EveryFrameOfEveryVersionKeepsItsMeaning) {
  Entries now;
  for (int type = 1; type <= static_cast<int>(FrameType::kPartialSum); ++type) {
    FrameHeader header;
    header.type = static_cast<FrameType>(type);
    header.flags = static_cast<uint16_t>(1 << type % 6);
    header.dtype = static_cast<DType>(type % 6);
    header.op = static_cast<ReduceOp>(type % 6);
    header.job = JobId(0x1122334455667700 + type);
    header.generation = Generation(100 + type);
    header.sender = 200 + type;
    header.incarnation = Incarnation(0xfedcba9876543200 + type);
    header.plan_version = PlanVersion(300 + type);
    header.partition = PartitionId(TensorId(400 + type), 500 + type);
    header.round = Round(600 + type);
    header.priority = -type;
    header.contributors = 700 + type;
    header.payload_bytes = header.uncompressed_bytes = 800 + type;
    header.payload_crc32c = 0xabcdef00 + type;
    header.detail = 900 + type;
    EncodedHeader bytes;
    EncodeHeader(header, &bytes);
    now[std::string(Name(header.type))] = {
        std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), MeaningOf(header)};
  }
  Check("frame", protocol::kFrame, now, MeaningOfFrame);
}

// ---- trainers ----
std::string MeaningOf(const ipc::Message& m) {
  return absl::StrFormat(
      "version=%d type=%d tensor=%d flags=%d dtype=%d op=%d request=%d round=%d offset=%d bytes=%d "
      "priority=%d code=%d dims=%d text_bytes=%d rank=%d size=%d local_rank=%d local_size=%d "
      "node_rank=%d num_nodes=%d",
      m.version, static_cast<int>(m.type), m.tensor, m.flags, m.dtype, m.op, m.request, m.round,
      m.offset, m.bytes, m.priority, m.code, m.dims, m.text_bytes, m.rank, m.size, m.local_rank,
      m.local_size, m.node_rank, m.num_nodes);
}

std::string MeaningOfTrainers(const std::string&, const std::string& bytes) {
  ipc::Message message;
  if (bytes.size() != sizeof(message)) return "not a message";
  std::memcpy(&message, bytes.data(), sizeof(message));
  if (message.magic != ipc::kMagic || !protocol::kTrainers.Contains(message.version)) {
    return "another protocol";
  }
  return MeaningOf(message);
}

TEST(GoldenTest, EveryTrainerMessageOfEveryVersionKeepsItsMeaning) {
  Entries now;
  for (int type = 1; type <= static_cast<int>(ipc::Type::kBell); ++type) {
    ipc::Message m;
    m.type = static_cast<ipc::Type>(type);
    m.tensor = 10 + type;
    m.flags = static_cast<uint16_t>(1 << type % 5);
    m.dtype = static_cast<uint8_t>(type % 6);
    m.op = static_cast<uint8_t>(type % 5);
    m.request = 0x1122334455667700 + type;
    m.round = 20 + type;
    m.offset = 30 + type;
    m.bytes = 40 + type;
    m.priority = -type;
    m.code = 50 + type;
    m.dims = 60 + type;
    m.text_bytes = 70 + type;
    m.rank = 80 + type;
    m.size = 90 + type;
    m.local_rank = 100 + type;
    m.local_size = 110 + type;
    m.node_rank = 120 + type;
    m.num_nodes = 130 + type;
    now[absl::StrFormat("%02d", type)] = {std::string(reinterpret_cast<const char*>(&m), sizeof(m)),
                                          MeaningOf(m)};
  }
  Check("trainers", protocol::kTrainers, now, MeaningOfTrainers);
}

// ---- the control plane and the store ----
constexpr int kDeepest = 4;

void SetOne(const FieldDescriptor& field, int depth, Message* message);

void Fill(Message* message, int depth) {
  const Descriptor& type = *message->GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) SetOne(*type.field(i), depth, message);
}

// Every field gets a value of its own; a list gets a single element.
void SetOne(const FieldDescriptor& field, int depth, Message* message) {
  const Reflection& reflection = *message->GetReflection();
  const auto set = [&](auto one, auto add, auto value) {
    if (field.is_repeated()) {
      (reflection.*add)(message, &field, value);
    } else {
      (reflection.*one)(message, &field, value);
    }
  };
  const int number = field.number() + 100;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return set(&Reflection::SetInt32, &Reflection::AddInt32, -number);
    case FieldDescriptor::CPPTYPE_INT64:
      return set(&Reflection::SetInt64, &Reflection::AddInt64, int64_t{-number});
    case FieldDescriptor::CPPTYPE_UINT32:
      return set(&Reflection::SetUInt32, &Reflection::AddUInt32, static_cast<uint32_t>(number));
    case FieldDescriptor::CPPTYPE_UINT64:
      return set(&Reflection::SetUInt64, &Reflection::AddUInt64, static_cast<uint64_t>(number));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return set(&Reflection::SetDouble, &Reflection::AddDouble, number + 0.5);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return set(&Reflection::SetFloat, &Reflection::AddFloat, number + 0.5f);
    case FieldDescriptor::CPPTYPE_BOOL:
      return set(&Reflection::SetBool, &Reflection::AddBool, true);
    case FieldDescriptor::CPPTYPE_ENUM:
      return set(&Reflection::SetEnumValue, &Reflection::AddEnumValue, 1);
    case FieldDescriptor::CPPTYPE_STRING: {
      const std::string text = absl::StrFormat("text %d", number);
      if (field.is_repeated()) return reflection.AddString(message, &field, text);
      return reflection.SetString(message, &field, text);
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      if (depth == kDeepest) return;
      Fill(field.is_repeated() ? reflection.AddMessage(message, &field)
                               : reflection.MutableMessage(message, &field),
           depth + 1);
  }
}

std::unique_ptr<Message> New(const std::string& name) {
  const Descriptor* const type =
      google::protobuf::DescriptorPool::generated_pool()->FindMessageTypeByName(name);
  if (type == nullptr) return nullptr;
  return std::unique_ptr<Message>(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(type)->New());
}

std::string TextOf(const Message& message) {
  google::protobuf::TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  std::string text;
  printer.PrintToString(message, &text);
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

std::string MeaningOfMessage(const std::string& name, const std::string& bytes) {
  const auto message = New(name);
  if (message == nullptr) return "a message that is gone";
  return message->ParseFromString(bytes) ? TextOf(*message) : "not such a message";
}

Entries AllOf(const std::vector<const google::protobuf::FileDescriptor*>& files) {
  Entries now;
  for (const auto* file : files) {
    for (int i = 0; i < file->message_type_count(); ++i) {
      const std::string& name = file->message_type(i)->full_name();
      const auto message = New(name);
      Fill(message.get(), 0);
      now[name] = {message->SerializeAsString(), TextOf(*message)};
    }
  }
  return now;
}

TEST(GoldenTest, EveryControlPlaneMessageOfEveryVersionKeepsItsMeaning) {
  Check("control", protocol::kControl,
        AllOf({v1::JobSettings::descriptor()->file(), v1::WatchRequest::descriptor()->file(),
               v1::LinkSignal::descriptor()->file()}),
        MeaningOfMessage);
}

TEST(GoldenTest, EveryStoreRecordOfEveryVersionKeepsItsMeaning) {
  Check("store", protocol::kStore, AllOf({v1::JobRecord::descriptor()->file()}), MeaningOfMessage);
}

}  // namespace
}  // namespace addend
