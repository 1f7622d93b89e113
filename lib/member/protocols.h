// The protocol ranges of lib/base/version.h in the form that members and scheduler exchange.
#pragma once

#include "lib/base/version.h"
#include "proto/addend/v1/common.pb.h"

namespace addend {

inline void Fill(const VersionRange& range, v1::VersionRange* proto) {
  proto->set_oldest(range.oldest);
  proto->set_newest(range.newest);
}

// The ranges that this build speaks.
inline v1::Protocols OwnProtocols() {
  v1::Protocols protocols;
  Fill(protocol::kFrame, protocols.mutable_frame());
  Fill(protocol::kRdma, protocols.mutable_rdma());
  return protocols;
}

inline VersionRange FromProto(const v1::VersionRange& proto) {
  return {proto.oldest(), proto.newest()};
}
inline VersionRange FramesOf(const v1::Protocols& protocols) {
  return protocols.has_frame() ? FromProto(protocols.frame()) : protocol::kFrameUnnamed;
}
inline VersionRange RdmaOf(const v1::Protocols& protocols) {
  return protocols.has_rdma() ? FromProto(protocols.rdma()) : protocol::kRdmaUnnamed;
}

// Names the newest version of this file's own protocol, and the oldest if there are several.
template <typename Registration>
void FillVersions(Registration* registration) {
  registration->set_protocol_version(protocol::kControl.newest);
  if (protocol::kControl.oldest != protocol::kControl.newest) {
    registration->set_oldest_protocol_version(protocol::kControl.oldest);
  }
  *registration->mutable_protocols() = OwnProtocols();
}

}  // namespace addend
