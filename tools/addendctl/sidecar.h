// deploy/helm/addend/files/sidecar.yaml, as it was when this was built.
#pragma once

namespace addend {

extern const char kSidecarYaml[];

}  // namespace addend
