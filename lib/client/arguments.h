// Checks the arguments that callers of the C ABI pass. Pure; every failure is ADDEND_ERROR_INVALID.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/participants.h"
#include "lib/base/types.h"
#include "lib/base/wire_format.h"
#include "lib/client/addend.h"
#include "lib/client/error.h"

namespace addend::client {

struct Declaration {
  std::string name;
  std::vector<int64_t> shape;
  DType dtype{};
  ReduceOp op{};
  Participants participants = {};
  std::optional<WireFormat> wire = {};  // nullopt: the job's

  bool operator==(const Declaration&) const = default;
};

// The name has to be UTF-8 because the messages that carry it require UTF-8.
Error CheckDeclaration(const char* name, const int64_t* shape, int32_t dims, addend_dtype dtype,
                       addend_op op, Declaration* declaration);

// `size`, `rank`: of the job, and of this process in it. The ranks may come in any order.
Error CheckParticipants(const char* name, const int32_t* ranks, int32_t count, int32_t size,
                        int32_t rank, Participants* participants);

// The type in which the elements of the declared tensor travel.
Error CheckWire(const char* wire, Declaration* declaration);

// UTF-8 as the Unicode standard defines it: no overlong forms, no surrogates.
bool IsUtf8(std::string_view text);

}  // namespace addend::client
