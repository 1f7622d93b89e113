// The frames about a partition between this node and the partition's owner.
#pragma once

#include <cstdint>
#include <memory>

#include "lib/encoding/payload_encoder.h"
#include "lib/link/server_link.h"
#include "lib/wire/frame.h"
#include "services/worker_agent/node_tensor.h"
#include "services/worker_agent/tensor_table.h"

namespace addend {

FrameHeader HeaderFor(const NodeIdentity& self, const NodeTensor& tensor, uint32_t partition,
                      FrameType type);
// Reports the newest round whose result this node holds.
void SendReport(const NodeIdentity& self, const NodeTensor& tensor, uint32_t partition,
                FrameType type);
// Sends a result that this node holds, since the owner has asked for it. `encoder` outlives the
// link.
void SendHeldResult(const NodeIdentity& self, const std::shared_ptr<NodeTensor>& tensor,
                    uint32_t partition, Round round, PayloadEncoder* encoder);

// The tensor of a frame that its partition's owner has sent, or null. A node ignores all other
// servers: once it has reported its newest result to a new owner, a result of the former owner
// would make the report untrue (M_ANY_SERVER in spec/recovery.pml). A server that becomes the owner
// again counts as another server (there each version is one): its version tells.
std::shared_ptr<NodeTensor> FindOwned(const NodeIdentity& self, const TensorTable& tensors,
                                      const ServerLink* sender, const FrameHeader& header);

}  // namespace addend
