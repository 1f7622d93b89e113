// The version of a store's records (lib/base/version.h, kStore): a record of its own says it, in
// every kind of store. Pure.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "services/scheduler/store/store.h"

namespace addend {

// Of all entries of the store that is called `name`. FAILED_PRECONDITION (exit status 66): another
// release wrote it, in a version that this release does not read. DATA_LOSS: the record is damaged.
absl::Status CheckFormat(std::string_view name, std::span<const StoreEntry> entries);

// The write that has to come before all others; nullopt: the store has it already.
std::optional<StoreWrite> FormatToWrite(std::span<const StoreEntry> entries);

}  // namespace addend
