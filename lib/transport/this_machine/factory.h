// The machine that this process runs on: real threads, TCP, shared memory, and the clock of the
// cluster.
#pragma once

#include <chrono>
#include <memory>

#include "lib/transport/machine.h"
#include "lib/transport/shm/factory.h"

namespace addend {

// Never destroyed; its loops sleep at once, and its transports share no memory.
Machine* ThisMachine();
// The same, with loops that look for events for at most `most_spin` before they sleep.
std::unique_ptr<Machine> MakeMachine(std::chrono::nanoseconds most_spin,
                                     SharedMemoryOptions shared_memory);

}  // namespace addend
