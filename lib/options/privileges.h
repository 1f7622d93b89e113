// The privileges that a service started as root drops before it listens.
#pragma once

namespace addend {

// Drops all capabilities except those that pin memory for RDMA and open files of other users
// (certificates, the store, sockets of a pod's group), permanently: no program that this process
// might ever execute regains them. A process without capabilities only loses the right to regain
// them. Must be called before the second thread starts.
void DropPrivileges();

}  // namespace addend
