// The view of `addendctl top`: two answers of the scheduler, an interval apart, as rows. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/addend/v1/scheduler.pb.h"

namespace addend {

struct Sample {
  v1::GetStatusResponse status;
  double at_s = 0;  // time of the sample, on any clock that does not jump
};

// Rates cover the time between the two samples, in bits per second; nullopt if only one sample has
// the member, or the member was restarted in between.
struct TopJob {
  std::string name;
  std::string state;
  uint32_t connected = 0;  // nodes
  uint32_t nodes = 0;
  uint32_t cpu_servers = 0;  // the CPU servers that sum for it
  uint32_t tensors = 0;
  uint64_t tensor_bytes = 0;
  std::optional<double> round_s = {};    // mean of the nodes' last rounds
  std::optional<double> optimal_s = {};  // the shortest time possible for the same rounds
  // The same for the bytes that payloads take on the wire; nullopt until these are measured.
  std::optional<double> optimal_encoded_s = {};
  std::optional<double> efficiency = {};  // 0 to 1: optimal_s / round_s
  std::optional<double> pushed_bps = {};  // bytes that its nodes push to be summed
};

struct TopServer {
  uint32_t id = 0;
  std::string host;
  std::string kind;  // "cpu", or "node 3 of job"
  double share = 0;  // of the bytes of the jobs for which it sums
  std::optional<double> in_bps = {};
  std::optional<double> out_bps = {};
  uint64_t memory_used_bytes = 0;
  uint64_t memory_limit_bytes = 0;  // 0: no limit
  double last_seen_s = 0;
  double speed = 0;
  bool draining = false;
};

struct TopNode {
  std::string job;
  uint32_t rank = 0;
  std::string host;
  bool connected = false;
  std::optional<double> in_bps = {};
  std::optional<double> out_bps = {};
  std::optional<double> round_s = {};
  std::optional<double> efficiency = {};
  double last_seen_s = 0;
  std::string activity;
};

struct TopEvent {
  uint64_t number = 0;
  double unix_s = 0;
  double age_s = 0;
  std::string kind;
  std::string text;
};

struct TopView {
  std::string version;
  double uptime_s = 0;
  uint32_t recommended_servers = 0;
  std::vector<TopJob> jobs = {};
  std::vector<TopServer> servers = {};
  std::vector<TopNode> nodes = {};
  std::vector<TopEvent> events = {};  // the newest five events, oldest first
};

// `before`: null for the first sample.
TopView MakeTopView(const Sample* before, const Sample& now);

struct TopHeader {
  std::string scheduler;  // the queried address
  std::string away;       // why it does not answer; empty: it answers
  double away_s = 0;      // for how long it has not answered
  double unix_s = 0;      // now, on this machine
};

// `view`: null until the scheduler has answered. Both end with a line feed.
std::string TopText(const TopHeader& header, const TopView* view);
std::string TopJson(const TopHeader& header, const TopView* view);

// Cuts lines to `columns` characters and the text to `rows` lines; 0: no limit.
std::string FitScreen(const std::string& text, size_t columns, size_t rows);

}  // namespace addend
