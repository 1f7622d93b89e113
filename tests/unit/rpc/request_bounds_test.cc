#include "lib/rpc/request_bounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "google/protobuf/util/message_differencer.h"
#include "lib/base/limits.h"
#include "lib/base/strings.h"
#include "proto/addend/v1/scheduler.pb.h"

namespace addend {
namespace {

using google::protobuf::FieldDescriptor;
using testing::HasSubstr;

// Fills the field with its greatest number of items, or exceeds it.
void Fill(google::protobuf::Message* message, const FieldDescriptor& field, size_t items) {
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  for (size_t i = 0; i < items; ++i) {
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING:
        reflection.AddString(message, &field, "");
        break;
      case FieldDescriptor::CPPTYPE_MESSAGE:
        reflection.AddMessage(message, &field);
        break;
      case FieldDescriptor::CPPTYPE_INT64:
        reflection.AddInt64(message, &field, 1);
        break;
      case FieldDescriptor::CPPTYPE_UINT32:
        reflection.AddUInt32(message, &field, 1);
        break;
      case FieldDescriptor::CPPTYPE_UINT64:
        reflection.AddUInt64(message, &field, 1);
        break;
      default:
        FAIL() << field.full_name() << ": lists of this kind are new here";
    }
  }
}

std::unique_ptr<google::protobuf::Message> NewMessage(const google::protobuf::Descriptor& type) {
  return std::unique_ptr<google::protobuf::Message>(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(&type)->New());
}

// All messages that requests to the scheduler are made of.
std::set<const google::protobuf::Descriptor*> TypesOfRequests() {
  std::set<const google::protobuf::Descriptor*> types;
  std::vector<const google::protobuf::Descriptor*> next;
  const auto* const scheduler =
      v1::GetStatusRequest::descriptor()->file()->FindServiceByName("Scheduler");
  for (int i = 0; i < scheduler->method_count(); ++i) {
    next.push_back(scheduler->method(i)->input_type());
  }
  while (!next.empty()) {
    const google::protobuf::Descriptor* const type = next.back();
    next.pop_back();
    if (!types.insert(type).second) continue;
    for (int i = 0; i < type->field_count(); ++i) {
      if (type->field(i)->message_type() != nullptr) next.push_back(type->field(i)->message_type());
    }
  }
  return types;
}

TEST(RequestBoundsTest, EveryTextAndListOfEveryRequestHasABound) {
  size_t texts = 0;
  size_t lists = 0;
  for (const google::protobuf::Descriptor* type : TypesOfRequests()) {
    for (int i = 0; i < type->field_count(); ++i) {
      const FieldDescriptor& field = *type->field(i);
      const auto message = NewMessage(*type);
      if (field.is_repeated()) {
        ++lists;
        Fill(message.get(), field, MostItems(field));
        EXPECT_TRUE(CheckBounds(*message).ok()) << field.full_name();
        Fill(message.get(), field, 1);
      } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
        ++texts;
        const auto* const reflection = message->GetReflection();
        reflection->SetString(message.get(), &field, std::string(MostBytes(field), 'a'));
        EXPECT_TRUE(CheckBounds(*message).ok()) << field.full_name();
        reflection->SetString(message.get(), &field, std::string(MostBytes(field) + 1, 'a'));
      } else {
        continue;
      }
      const absl::Status status = CheckBounds(*message);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field.full_name();
      EXPECT_THAT(Message(status), HasSubstr(field.name()));
    }
  }
  EXPECT_GT(texts, 20u);
  EXPECT_GT(lists, 8u);
}

TEST(RequestBoundsTest, RefusesTheTextInAList) {
  v1::DeclareRequest request;
  request.add_tensors()->set_name(std::string(kMaxNameBytes, 'n'));
  request.add_tensors()->set_name(std::string(kMaxNameBytes + 1, 'n'));
  EXPECT_EQ(Message(CheckBounds(request)), "TensorDescriptor.name has 4097 bytes, more than 4096");
}

TEST(RequestBoundsTest, RefusesNumbersThatAreNotFinite) {
  v1::HeartbeatRequest request;
  request.mutable_rounds()->set_seconds(std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(Message(CheckBounds(request)), "RoundTimes.seconds is nan, which is not a number");
  request.mutable_rounds()->set_seconds(std::numeric_limits<double>::infinity());
  EXPECT_FALSE(CheckBounds(request).ok());
  request.mutable_rounds()->set_seconds(std::numeric_limits<double>::max());
  EXPECT_TRUE(CheckBounds(request).ok());
}

TEST(ShortenSentencesTest, CutsOnlyTextsThatTheReceiverWouldRefuse) {
  v1::HeartbeatRequest request;
  request.mutable_member()->set_key(std::string(32, 'k'));
  request.set_activity("training, round 812");
  v1::HeartbeatRequest as_it_is = request;
  ShortenSentences(&request);
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(request, as_it_is));
  request.add_incidents()->set_text(std::string(kSentenceBytes + 5, 's'));
  ShortenSentences(&request);
  EXPECT_TRUE(CheckBounds(request).ok());
  EXPECT_THAT(request.incidents(0).text(), testing::EndsWith("sss..."));
  EXPECT_EQ(request.incidents(0).text().size(), kSentenceBytes);
}

TEST(ShortenSentencesTest, ManySentencesShareARequest) {
  v1::AckReservationRequest request;
  for (size_t i = 0; i < kMaxTensors; ++i) request.add_refused()->set_reason(std::string(500, 'r'));
  ShortenSentences(&request);
  EXPECT_TRUE(CheckBounds(request).ok());
  EXPECT_LT(request.ByteSizeLong(), static_cast<size_t>(kMaxRequestBytes));
  EXPECT_GT(request.refused(0).reason().size(), 50u);
}

}  // namespace
}  // namespace addend
