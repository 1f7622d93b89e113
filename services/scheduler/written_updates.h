// The updates of a decision as they travel. Most go to all nodes of a job: each is written down
// once, and the nodes' streams share the bytes.
#pragma once

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/byte_buffer.h>

#include <memory>

#include "absl/container/flat_hash_map.h"
#include "proto/addend/v1/scheduler.pb.h"

namespace addend {

class WrittenUpdates {
 public:
  // `update` outlives this object.
  std::shared_ptr<const grpc::ByteBuffer> Of(const v1::NodeUpdate& update) {
    std::shared_ptr<const grpc::ByteBuffer>& written = written_[&update];
    if (written == nullptr) {
      auto bytes = std::make_shared<grpc::ByteBuffer>();
      bool own = false;
      // It fails beyond 2 GiB alone, which nobody could read either.
      grpc::SerializationTraits<v1::NodeUpdate>::Serialize(update, bytes.get(), &own);
      written = std::move(bytes);
    }
    return written;
  }

 private:
  absl::flat_hash_map<const v1::NodeUpdate*, std::shared_ptr<const grpc::ByteBuffer>> written_;
};

}  // namespace addend
