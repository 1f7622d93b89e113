// deploy/helm/addend/files/sidecar.yaml, embedded at build time.
#pragma once

namespace addend {

extern const char kSidecarYaml[];

}  // namespace addend
