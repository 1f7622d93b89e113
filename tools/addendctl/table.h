// Readable text: tables, and numbers with few digits.
#pragma once

#include <string>
#include <vector>

namespace addend {

// Rows under a header, columns as wide as their widest cell. Columns of numbers are aligned to the
// right.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  // `row` has as many cells as the header.
  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  bool empty() const { return rows_.size() == 1; }
  // Every line ends with a line feed, and starts with `indent` spaces.
  std::string ToString(int indent = 0) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::string FormatPercent(double fraction);  // "12.5 %"
std::string FormatSeconds(double seconds);   // "830 us", "12.5 ms", "3.20 s", "5 min", "2.5 h"
std::string FormatSize(double bytes);        // "1.25 GB": decimal, three digits

}  // namespace addend
