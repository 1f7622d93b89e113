#include "bench/verbs_session.h"

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "bench/verbs_channel.h"
#include "bench/verbs_end.h"
#include "bench/verbs_queue_pair.h"
#include "lib/base/clock.h"
#include "lib/base/status_macros.h"

namespace addend::verbs {
namespace {

std::function<bool(uint64_t)> Enough(const Settings& settings) {
  if (settings.iterations > 0) {
    return [most = settings.iterations](uint64_t sent) { return sent >= most; };
  }
  return [last = SteadyNow() + absl::Seconds(settings.seconds)](uint64_t) {
    return SteadyNow() >= last;
  };
}

// Traffic from a device to itself, in separate threads, from Start() until Stop().
class Loopback {
 public:
  static absl::StatusOr<std::unique_ptr<Loopback>> Start(const Device& device,
                                                         const Settings& settings) {
    std::unique_ptr<Loopback> made(new Loopback);
    ADDEND_ASSIGN_OR_RETURN(made->sender_, End::Create(device, settings));
    ADDEND_ASSIGN_OR_RETURN(made->receiver_, End::Create(device, settings));
    ADDEND_RETURN_IF_ERROR(made->sender_->Connect(made->receiver_->address()));
    ADDEND_RETURN_IF_ERROR(made->receiver_->Connect(made->sender_->address()));
    made->receiving_ = std::thread([loopback = made.get()] {
      loopback->received_ = loopback->receiver_->Run({.receives = true});
    });
    made->sending_ = std::thread([loopback = made.get()] {
      const auto enough = [loopback](uint64_t) { return loopback->stop_.load(); };
      loopback->sent_ = loopback->sender_->Run({.sends = true, .enough = enough});
    });
    return made;
  }
  ~Loopback() { Join(); }

  // Stops the traffic and returns the received payloads.
  absl::StatusOr<Outcome> Stop() {
    Join();
    ADDEND_RETURN_IF_ERROR(sent_.status());
    return received_;
  }

 private:
  Loopback() = default;
  void Join() {
    stop_.store(true);
    if (sending_.joinable()) sending_.join();
    if (receiving_.joinable()) receiving_.join();
  }

  std::unique_ptr<End> sender_, receiver_;
  std::atomic<bool> stop_{false};
  absl::StatusOr<Outcome> sent_, received_;  // written by its thread until that is joined
  std::thread sending_, receiving_;
};

Json ToJson(const EndReport& report) {
  Json json{{"device", report.device},
            {"gid_index", report.gid_index},
            {"outcome", ToJson(report.outcome)}};
  if (report.loopback) json["loopback"] = ToJson(*report.loopback);
  return json;
}

absl::StatusOr<EndReport> EndReportFromJson(const Json& json) {
  if (!json.is_object() || !json.contains("outcome")) {
    return absl::FailedPreconditionError("the other end is another version: it sent no outcome");
  }
  EndReport report;
  ADDEND_ASSIGN_OR_RETURN(report.outcome, OutcomeFromJson(json["outcome"]));
  if (json.contains("loopback")) {
    ADDEND_ASSIGN_OR_RETURN(report.loopback, OutcomeFromJson(json["loopback"]));
  }
  if (const auto name = json.find("device"); name != json.end() && name->is_string()) {
    report.device = name->get<std::string>();
  }
  if (const auto index = json.find("gid_index"); index != json.end() && index->is_number()) {
    report.gid_index = index->get<int>();
  }
  return report;
}

// The measurement at either end, once the end knows the settings.
absl::StatusOr<std::pair<EndReport, EndReport>> Measure(Channel* channel, const Settings& settings,
                                                        const DeviceChoice& choice, bool server) {
  ADDEND_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device,
                          Device::Open(choice.name, choice.gid_index));
  ADDEND_ASSIGN_OR_RETURN(const std::unique_ptr<End> end, End::Create(*device, settings));
  ADDEND_RETURN_IF_ERROR(channel->Send(ToJson(end->address())));
  ADDEND_ASSIGN_OR_RETURN(const Json address, channel->Receive());
  ADDEND_ASSIGN_OR_RETURN(const EndAddress peer, EndAddressFromJson(address));
  ADDEND_RETURN_IF_ERROR(end->Connect(peer));
  std::unique_ptr<Loopback> loopback;
  if (server && settings.loopback) {
    ADDEND_ASSIGN_OR_RETURN(loopback, Loopback::Start(*device, settings));
  }
  ADDEND_RETURN_IF_ERROR(channel->Send(Json{{"ready", true}}));
  ADDEND_RETURN_IF_ERROR(channel->Receive().status());
  EndReport mine{.device = device->name(), .gid_index = device->gid_index()};
  ADDEND_ASSIGN_OR_RETURN(mine.outcome, end->Run({.sends = !server || settings.both_ways,
                                                  .receives = server || settings.both_ways,
                                                  .enough = Enough(settings),
                                                  .channel = channel}));
  if (loopback != nullptr) {
    ADDEND_ASSIGN_OR_RETURN(mine.loopback, loopback->Stop());
  }
  // After this message the other end may close: none of its payloads is in flight any more.
  ADDEND_RETURN_IF_ERROR(channel->Send(ToJson(mine)));
  ADDEND_ASSIGN_OR_RETURN(const Json theirs, channel->Receive());
  ADDEND_ASSIGN_OR_RETURN(EndReport their_report, EndReportFromJson(theirs));
  return std::pair(std::move(mine), std::move(their_report));
}

// Like Measure, and sends a failure to the other end.
absl::StatusOr<std::pair<EndReport, EndReport>> MeasureAloud(Channel* channel,
                                                             const Settings& settings,
                                                             const DeviceChoice& choice,
                                                             bool server) {
  auto reports = Measure(channel, settings, choice, server);
  if (!reports.ok()) channel->SendFailure(reports.status());
  return reports;
}

}  // namespace

absl::Status RunServer(const UniqueFd& listener, const DeviceChoice& choice) {
  ADDEND_ASSIGN_OR_RETURN(Channel channel, Channel::Accept(listener));
  ADDEND_ASSIGN_OR_RETURN(const Json message, channel.Receive());
  const absl::StatusOr<Settings> settings = SettingsFromJson(message);
  if (!settings.ok()) {
    channel.SendFailure(settings.status());
    return settings.status();
  }
  return MeasureAloud(&channel, *settings, choice, /*server=*/true).status();
}

absl::StatusOr<Report> RunClient(const HostPort& server, const Settings& settings,
                                 const DeviceChoice& choice) {
  ADDEND_ASSIGN_OR_RETURN(Channel channel, Channel::Connect(server));
  ADDEND_RETURN_IF_ERROR(channel.Send(ToJson(settings)));
  ADDEND_ASSIGN_OR_RETURN(auto reports, MeasureAloud(&channel, settings, choice, /*server=*/false));
  return Report{.client = std::move(reports.first), .server = std::move(reports.second)};
}

}  // namespace addend::verbs
