// Contributions that come to the owner of a partition by way of another server.
#pragma once

#include "lib/base/ids.h"
#include "lib/base/sum_tree.h"

namespace addend {

// A span of nodes that send their contributions to another summation server, which sends their sum.
struct RelayedSpan {
  SumSpan span;
  ServerId relay;
};

}  // namespace addend
