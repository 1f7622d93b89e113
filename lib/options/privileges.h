// What a service that was started as root gives up before it listens.
#pragma once

namespace addend {

// Gives up all capabilities but those that pin memory for RDMA and open files of other users
// (certificates, the store, sockets of a pod's group), for good: no program that this process might
// ever execute gets them back. Without capabilities only that last part happens. To be called
// before the second thread starts.
void DropPrivileges();

}  // namespace addend
