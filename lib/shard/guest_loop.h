// A loop without a thread of its own: it lives on the thread of another loop, its host. A task that
// one of the two posts to the other runs at the end of the turn, and wakes no thread.
#pragma once

#include <memory>
#include <string>

#include "lib/shard/event_loop.h"

namespace addend {

// `host` outlives the guest, and whoever posts to it. The guest's Run() and Stop() are for other
// threads than the host's, as the host's own are; descriptors that are still watched and timers
// that are not due end with Stop().
std::unique_ptr<EventLoop> MakeGuestLoop(EventLoop* host, const std::string& name,
                                         size_t mailbox_capacity = 1 << 20);

}  // namespace addend
