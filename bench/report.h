// Measurements as text, for people and for programs.
#pragma once

#include <string>
#include <vector>

#include "bench/push_pull.h"

namespace addend {

// Returns the value below which `part` (0 to 1) of the values lie, by the nearest rank; `values` is
// not empty.
double Percentile(std::vector<double> values, double part);

// Returns an array with an object per line; bytes and seconds, never scaled.
std::string ToJson(const std::vector<Measurement>& lines);
std::string ToTable(const std::vector<Measurement>& lines, int ranks);
// Prints the JSON or the table to standard output.
void Print(const std::vector<Measurement>& lines, int ranks, bool json);

}  // namespace addend
