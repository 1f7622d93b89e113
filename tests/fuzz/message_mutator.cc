// Mutates messages: replaces, removes or duplicates a field of any nested message.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tests/fuzz/message_target.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace addend::fuzz {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr size_t kBytesMost = 256;
// Useful numbers and names, which often equal others.
constexpr const char* kNames[] = {"",     "a",      "b",    "job", "fail", "shrink", "flat",
                                  "node", "tensor", "auto", "tcp", "rdma", "h:1",    "nonfinite"};

class Mutator {
 public:
  explicit Mutator(uint32_t seed) : random_(seed) {}

  void Mutate(Message* input) {
    for (uint32_t times = 1 + Below(3); times > 0; --times) {
      std::vector<Message*> all;
      Collect(input, &all);
      MutateOne(all[Below(static_cast<uint32_t>(all.size()))]);
    }
  }
  // Takes elements of a field of `other`.
  void Cross(const Message& other, Message* input) {
    const Reflection& reflection = *input->GetReflection();
    std::vector<const FieldDescriptor*> fields;
    reflection.ListFields(other, &fields);
    for (const FieldDescriptor* field : fields) {
      if (!field->is_repeated()) continue;
      const auto count = static_cast<uint32_t>(reflection.FieldSize(other, field));
      const uint32_t first = Below(count);
      for (uint32_t i = first; i < count && i < first + 1 + Below(4); ++i) {
        reflection.AddMessage(input, field)
            ->CopyFrom(reflection.GetRepeatedMessage(other, field, static_cast<int>(i)));
        const int last = reflection.FieldSize(*input, field) - 1;
        reflection.SwapElements(input, field, last, static_cast<int>(Below(last + 1)));
      }
    }
  }

 private:
  uint32_t Below(uint32_t limit) { return limit == 0 ? 0 : random_() % limit; }

  static void Collect(Message* message, std::vector<Message*>* all) {
    all->push_back(message);
    const Reflection& reflection = *message->GetReflection();
    std::vector<const FieldDescriptor*> fields;
    reflection.ListFields(*message, &fields);
    for (const FieldDescriptor* field : fields) {
      if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
      if (!field->is_repeated()) {
        Collect(reflection.MutableMessage(message, field), all);
        continue;
      }
      for (int i = 0; i < reflection.FieldSize(*message, field); ++i) {
        Collect(reflection.MutableRepeatedMessage(message, field, i), all);
      }
    }
  }

  void MutateOne(Message* message) {
    const auto* const descriptor = message->GetDescriptor();
    if (descriptor->field_count() == 0) return;
    const FieldDescriptor* const field =
        descriptor->field(static_cast<int>(Below(descriptor->field_count())));
    const Reflection& reflection = *message->GetReflection();
    if (!field->is_repeated()) {
      if (Below(8) == 0) return reflection.ClearField(message, field);
      return SetOne(message, field);
    }
    const auto size = static_cast<uint32_t>(reflection.FieldSize(*message, field));
    const uint32_t what = size == 0 ? 0 : Below(6);
    if (what < 2) return AddOne(message, field);
    const auto at = static_cast<int>(Below(size));
    if (what == 2) {
      reflection.SwapElements(message, field, at, static_cast<int>(size) - 1);
      return reflection.RemoveLast(message, field);
    }
    if (what == 3)
      return reflection.SwapElements(message, field, at, static_cast<int>(Below(size)));
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) return AddOne(message, field);
    if (what == 4) return MutateOne(reflection.MutableRepeatedMessage(message, field, at));
    reflection.AddMessage(message, field)
        ->CopyFrom(reflection.GetRepeatedMessage(*message, field, at));
  }

  // Sets two fields of a new message, so that it is not empty.
  Message* Filled(Message* message) {
    for (int i = 0; i < 2; ++i) MutateOne(message);
    return message;
  }

  void SetOne(Message* m, const FieldDescriptor* f) {
    const Reflection& r = *m->GetReflection();
    switch (f->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return r.SetInt32(m, f, Number(r.GetInt32(*m, f)));
      case FieldDescriptor::CPPTYPE_INT64:
        return r.SetInt64(m, f, Number(r.GetInt64(*m, f)));
      case FieldDescriptor::CPPTYPE_UINT32:
        return r.SetUInt32(m, f, Number(r.GetUInt32(*m, f)));
      case FieldDescriptor::CPPTYPE_UINT64:
        return r.SetUInt64(m, f, Number(r.GetUInt64(*m, f)));
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return r.SetDouble(m, f, Real());
      case FieldDescriptor::CPPTYPE_FLOAT:
        return r.SetFloat(m, f, static_cast<float>(Real()));
      case FieldDescriptor::CPPTYPE_BOOL:
        return r.SetBool(m, f, !r.GetBool(*m, f));
      case FieldDescriptor::CPPTYPE_ENUM:
        return r.SetEnumValue(m, f, Enum(f));
      case FieldDescriptor::CPPTYPE_STRING:
        return r.SetString(m, f, Text(f, r.GetString(*m, f)));
      case FieldDescriptor::CPPTYPE_MESSAGE:
        if (!r.HasField(*m, f)) {
          Filled(r.MutableMessage(m, f));
        } else {
          MutateOne(r.MutableMessage(m, f));
        }
    }
  }

  void AddOne(Message* m, const FieldDescriptor* f) {
    const Reflection& r = *m->GetReflection();
    switch (f->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return r.AddInt32(m, f, Number(int32_t{1}));
      case FieldDescriptor::CPPTYPE_INT64:
        return r.AddInt64(m, f, Number(int64_t{1}));
      case FieldDescriptor::CPPTYPE_UINT32:
        return r.AddUInt32(m, f, Number(uint32_t{1}));
      case FieldDescriptor::CPPTYPE_UINT64:
        return r.AddUInt64(m, f, Number(uint64_t{1}));
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return r.AddDouble(m, f, Real());
      case FieldDescriptor::CPPTYPE_FLOAT:
        return r.AddFloat(m, f, static_cast<float>(Real()));
      case FieldDescriptor::CPPTYPE_BOOL:
        return r.AddBool(m, f, Below(2) == 0);
      case FieldDescriptor::CPPTYPE_ENUM:
        return r.AddEnumValue(m, f, Enum(f));
      case FieldDescriptor::CPPTYPE_STRING:
        return r.AddString(m, f, Text(f, ""));
      case FieldDescriptor::CPPTYPE_MESSAGE:
        Filled(r.AddMessage(m, f));
    }
  }

  // Returns a small number, a neighbour, a power of two, the last number, or any number.
  template <typename T>
  T Number(T now) {
    switch (Below(8)) {
      case 0:
        return static_cast<T>(static_cast<uint64_t>(now) + 1);
      case 1:
        return static_cast<T>(static_cast<uint64_t>(now) - 1);
      case 2:
        return static_cast<T>(uint64_t{1} << Below(64));
      case 3:
        return std::numeric_limits<T>::max();
      case 4:
        return static_cast<T>(random_() | uint64_t{random_()} << 32);
      default:
        return static_cast<T>(Below(5));
    }
  }
  double Real() {
    constexpr double kReals[] = {
        0, 1, -1, 0.5, 3, 10, 1e11, 1e9, 1e-9, -0., INFINITY, std::numeric_limits<double>::max()};
    const uint32_t which = Below(std::size(kReals) + 2);
    if (which == std::size(kReals)) return NAN;
    if (which > std::size(kReals)) return static_cast<double>(random_()) / 1e6;
    return kReals[which];
  }
  int Enum(const FieldDescriptor* field) {
    if (Below(16) == 0) return static_cast<int>(random_());
    return field->enum_type()
        ->value(static_cast<int>(Below(field->enum_type()->value_count())))
        ->number();
  }
  // Text on the wire is always UTF-8.
  std::string Text(const FieldDescriptor* field, std::string now) {
    if (field->type() == FieldDescriptor::TYPE_STRING) {
      if (Below(3) != 0) return kNames[Below(std::size(kNames))];
      now.append(Below(8) == 0 ? Below(5000) : 1, static_cast<char>(' ' + Below(95)));
      return now;
    }
    std::vector<uint8_t> bytes(std::max(now.size(), kBytesMost));
    std::memcpy(bytes.data(), now.data(), now.size());
    bytes.resize(LLVMFuzzerMutate(bytes.data(), now.size(), bytes.size()));
    return {bytes.begin(), bytes.end()};
  }

  std::minstd_rand random_;
};

size_t Give(const Message& input, uint8_t* data, size_t former, size_t max_size) {
  const std::string text = WriteInput(input);
  if (text.size() > max_size) return former;
  std::memcpy(data, text.data(), text.size());
  return text.size();
}

}  // namespace
}  // namespace addend::fuzz

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  const auto input = addend::fuzz::NewInput();
  if (!addend::fuzz::ReadInput({reinterpret_cast<char*>(data), size}, input.get())) input->Clear();
  addend::fuzz::Mutator(seed).Mutate(input.get());
  return addend::fuzz::Give(*input, data, size, max_size);
}

extern "C" size_t LLVMFuzzerCustomCrossOver(const uint8_t* one, size_t one_size,
                                            const uint8_t* other, size_t other_size, uint8_t* out,
                                            size_t max_size, unsigned seed) {
  const auto input = addend::fuzz::NewInput();
  const auto second = addend::fuzz::NewInput();
  using addend::fuzz::ReadInput;
  if (!ReadInput({reinterpret_cast<const char*>(one), one_size}, input.get()) ||
      !ReadInput({reinterpret_cast<const char*>(other), other_size}, second.get())) {
    return 0;
  }
  addend::fuzz::Mutator(seed).Cross(*second, input.get());
  return addend::fuzz::Give(*input, out, 0, max_size);
}
