// The names of operations that the caller has not named.
#include "lib/base/unnamed.h"

#include <gtest/gtest.h>

namespace addend {
namespace {

TEST(UnnamedTest, OperationsOfAGroupShareTheBeginningOfTheirNames) {
  EXPECT_EQ(GroupOfUnnamed("addend.unnamed/allreduce/float32[3]/0/0"), "addend.unnamed/");
  EXPECT_EQ(GroupOfUnnamed("torch.distributed/1.0/all_reduce/x/0/0"), "torch.distributed/1.0/");
  EXPECT_EQ(GroupOfUnnamed("torch.distributed/1.2/barrier/0/0"), "torch.distributed/1.2/");
  EXPECT_EQ(GroupOfUnnamed("addend.unnamed_in_set/2/allgather/0/"), "addend.unnamed_in_set/2/");
}

TEST(UnnamedTest, NamesOfTheCallerHaveNoGroup) {
  for (const char* name : {"", "w", "torch.distributed", "torch.distributed/x", "addend.unnamed"}) {
    EXPECT_EQ(GroupOfUnnamed(name), "") << name;
  }
}

}  // namespace
}  // namespace addend
