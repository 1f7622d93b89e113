#include "services/scheduler/network_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/str_format.h"
#include "services/scheduler/network_file.h"
#include "services/scheduler/network_view.h"

namespace addend {
namespace {

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);

std::string AddressOf(int host) { return absl::StrFormat("10.0.0.%d:7270", host); }

class NetworkMapTest : public testing::Test {
 protected:
  void Join(int host, const std::string& place = "", double bandwidth_bps = 1e9) {
    map_.Hear(now_, {absl::StrFormat("node %d of job", host), AddressOf(host),
                     absl::StrFormat("host%d", host), place, bandwidth_bps});
  }
  NetworkMap::Targets Choose(int host) {
    NetworkMap::Targets targets;
    map_.Choose(now_, AddressOf(host), &targets);
    return targets;
  }
  void Tell(int host, const std::string& address, double latency_s, double bandwidth_bps = 0) {
    NetworkMap::Probes probes;
    v1::Probe& probe = *probes.Add();
    probe.set_address(address);
    probe.set_latency_s(latency_s);
    probe.set_bandwidth_bps(bandwidth_bps);
    map_.Take(now_, AddressOf(host), probes);
  }
  // Every host measures what it is asked for, for a while.
  template <typename Latency>
  void MeasureAll(int hosts, int rounds, Latency latency) {
    for (int round = 0; round < rounds; ++round) {
      now_ += absl::Seconds(2);
      for (int host = 1; host <= hosts; ++host) {
        Join(host);
        for (const v1::ProbeTarget& target : Choose(host)) {
          const int other = std::stoi(target.address().substr(7));
          Tell(host, target.address(), latency(host, other));
        }
      }
    }
  }

  NetworkMap map_{/*measures=*/true};
  absl::Time now_ = kStart;
};

TEST_F(NetworkMapTest, AHostIsAskedToMeasureOthersAndNotItself) {
  for (int host = 1; host <= 4; ++host) Join(host);
  std::set<std::string> asked;
  for (const v1::ProbeTarget& target : Choose(1)) asked.insert(target.address());
  EXPECT_EQ(asked, (std::set<std::string>{AddressOf(2), AddressOf(3), AddressOf(4)}));
}

TEST_F(NetworkMapTest, AHostIsAskedOnceASecondAtFirstAndOnceAMinuteLater) {
  Join(1);
  Join(2);
  EXPECT_EQ(Choose(1).size(), 1);
  EXPECT_EQ(Choose(1).size(), 0);
  int asked = 1;
  for (int second = 0; second < 90; ++second) {
    now_ += absl::Seconds(1);
    Join(1);
    Join(2);
    asked += Choose(1).size();
  }
  EXPECT_EQ(asked, 40 + 1);
  asked = 0;
  for (int second = 0; second < 120; ++second) {
    now_ += absl::Seconds(1);
    Join(1);
    Join(2);
    asked += Choose(1).size();
  }
  EXPECT_EQ(asked, 2);
}

TEST_F(NetworkMapTest, WithoutMeasuringNobodyIsAsked) {
  NetworkMap map(/*measures=*/false);
  map.Hear(now_, {"server 1", AddressOf(1), "cpu1", "", 0});
  map.Hear(now_, {"server 2", AddressOf(2), "cpu2", "", 0});
  NetworkMap::Targets targets;
  map.Choose(now_, AddressOf(1), &targets);
  EXPECT_TRUE(targets.empty());
}

TEST_F(NetworkMapTest, OnlyWhatWasAskedForIsTaken) {
  Join(1);
  Join(2);
  Tell(1, AddressOf(2), 1e-5);
  EXPECT_EQ(map_.TimesMeasured("10.0.0.1", "10.0.0.2"), 0);
  Choose(1);
  Tell(1, AddressOf(1), 1e-5);
  Tell(1, "10.0.0.9:7270", 1e-5);
  EXPECT_TRUE(map_.Facts().pairs.empty());
  Tell(1, AddressOf(2), 1e-5);
  Tell(1, AddressOf(2), 1e-5);  // once for each time that it was asked
  EXPECT_EQ(map_.TimesMeasured("10.0.0.2", "10.0.0.1"), 1);
}

TEST_F(NetworkMapTest, WhatCannotBeIsNotTaken) {
  Join(1);
  Join(2);
  for (const double latency_s : {0.0, -1.0, 11.0}) {
    Choose(1);
    now_ += absl::Seconds(1);
    Tell(1, AddressOf(2), latency_s);
  }
  Choose(1);
  Tell(1, AddressOf(2), 1e-5, 1e20);
  ASSERT_EQ(map_.Facts().pairs.size(), 1);
  EXPECT_EQ(map_.Facts().pairs[0].bandwidth_bps, 0);
}

TEST_F(NetworkMapTest, TheLeastRoundTripsOfBothHalvesCountAndFade) {
  Join(1);
  Join(2);
  for (const double us : {20.0, 30.0, 10.0, 40.0, 15.0}) {
    now_ += absl::Seconds(1);
    ASSERT_EQ(Choose(1).size(), 1);
    Tell(1, AddressOf(2), us * 1e-6);
  }
  const NetworkFacts facts = map_.Facts();
  ASSERT_EQ(facts.pairs.size(), 1);
  EXPECT_NEAR(facts.pairs[0].first_s, 10.2e-6, 1e-9);   // 20, 10, then 15
  EXPECT_NEAR(facts.pairs[0].second_s, 30.6e-6, 1e-9);  // 30, then 40
}

TEST_F(NetworkMapTest, OneChoiceInFourMeasuresBandwidthForAMomentOfTheLink) {
  Join(1, "", 1e9);
  Join(2, "", 4e8);
  int with_bandwidth = 0;
  for (int i = 0; i < 8; ++i) {
    now_ += absl::Seconds(1);
    for (const v1::ProbeTarget& target : Choose(1)) {
      if (target.bandwidth_bytes() == 0) continue;
      ++with_bandwidth;
      EXPECT_EQ(target.bandwidth_bytes(), 1'000'000);  // 20 ms of the slower link
    }
  }
  EXPECT_EQ(with_bandwidth, 2);
}

TEST_F(NetworkMapTest, NoCallMeasuresTheBandwidthOfAnotherInterface) {
  Join(1);
  map_.Hear(now_, {"server 2", AddressOf(2), "cpu2", "", 1e9, /*has_data_network=*/true});
  for (int i = 0; i < 8; ++i) {
    now_ += absl::Seconds(1);
    for (const int host : {1, 2}) {
      for (const v1::ProbeTarget& target : Choose(host)) EXPECT_EQ(target.bandwidth_bytes(), 0);
    }
  }
}

TEST_F(NetworkMapTest, AHostThatIsSilentForAMinuteIsForgottenWithItsPairs) {
  for (int host = 1; host <= 5; ++host) Join(host);
  for (int host = 1; host <= 5; ++host) {
    for (const v1::ProbeTarget& target : Choose(host)) Tell(host, target.address(), 1e-5 * host);
  }
  EXPECT_EQ(map_.Facts().pairs.size(), 10);
  now_ += absl::Seconds(50);
  for (const int host : {1, 3, 4, 5}) Join(host);
  now_ += absl::Seconds(20);
  Join(1);
  const NetworkFacts facts = map_.Facts();
  ASSERT_EQ(facts.hosts.size(), 4);
  EXPECT_EQ(facts.pairs.size(), 6);
  EXPECT_EQ(map_.TimesMeasured("10.0.0.1", "10.0.0.2"), 0);
  EXPECT_EQ(map_.TimesMeasured("10.0.0.4", "10.0.0.5"), 2);
  Join(2);
  EXPECT_EQ(Choose(2).size(), 4);
}

TEST_F(NetworkMapTest, HostsOfNamesAndLoopbackAreNotMeasured) {
  map_.Hear(now_, {"server 1", "cpu1.example:7170", "cpu1", "", 0});
  map_.Hear(now_, {"server 2", "127.0.0.1:7170", "cpu2", "", 0});
  map_.Hear(now_, {"server 3", "nonsense", "cpu3", "", 0});
  EXPECT_TRUE(map_.Facts().hosts.empty());
  EXPECT_EQ(NumericHost("[fd00::1]:7170"), "fd00::1");
}

TEST_F(NetworkMapTest, TwoRacksAreFound) {
  const auto rack = [](int host) { return host % 2; };
  MeasureAll(8, 20,
             [&](int a, int b) { return rack(a) == rack(b) ? 1e-5 : 2e-5 + 1e-7 * (a + b); });
  const v1::GetNetworkResponse view = ViewOf(map_.Facts());
  EXPECT_EQ(view.source(), v1::GetNetworkResponse::MEASURED);
  ASSERT_EQ(view.levels(), 1);
  ASSERT_EQ(view.hosts_size(), 8);
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(view.hosts(i).groups(0), i / 4);
    EXPECT_EQ(view.hosts(i).address(), absl::StrFormat("10.0.0.%d", 2 * (i % 4) + 1 + i / 4));
  }
  ASSERT_EQ(view.kinds_size(), 2);
  EXPECT_EQ(view.kinds(0).pairs(), 16);
  EXPECT_EQ(view.kinds(1).pairs(), 12);
  EXPECT_NEAR(view.kinds(1).latency_s(), 1e-5, 1e-6);
  EXPECT_TRUE(view.slow().empty());
}

TEST_F(NetworkMapTest, ToldPlacesCountIfAllHostsHaveOne) {
  Join(1, "zone/row1/rack1");
  Join(2, "zone/row1/rack2");
  Join(3, "zone/row2/rack3");
  Join(4, "zone/row1/rack1");
  FoundGroups found = GroupsOf(map_.Facts());
  EXPECT_EQ(found.source, v1::GetNetworkResponse::TOLD);
  ASSERT_EQ(found.groups.levels.size(), 2);  // the zone divides nothing
  EXPECT_EQ(found.groups.levels[0], (std::vector<uint32_t>{0, 0, 1, 0}));
  EXPECT_EQ(found.groups.levels[1], (std::vector<uint32_t>{0, 1, 2, 0}));
  Join(5);
  found = GroupsOf(map_.Facts());
  EXPECT_EQ(found.source, v1::GetNetworkResponse::UNKNOWN);
  EXPECT_TRUE(found.groups.levels.empty());
}

TEST_F(NetworkMapTest, ASlowLinkIsNamed) {
  MeasureAll(6, 20, [](int a, int b) { return a * b == 12 && a + b == 7 ? 9e-5 : 2e-5; });
  const v1::GetNetworkResponse view = ViewOf(map_.Facts());
  ASSERT_EQ(view.slow_size(), 1);
  EXPECT_EQ(view.slow(0).from(), "10.0.0.3");
  EXPECT_EQ(view.slow(0).to(), "10.0.0.4");
  EXPECT_NEAR(view.slow(0).typical_latency_s(), 2e-5, 1e-6);
}

TEST(NetworkPlacesTest, LinesAreHostsAndPlaces) {
  const auto places = ParseNetworkPlaces("# racks\n10.0.0.1 a/1\n\n  gpu7\tb/2  # the new one\n");
  ASSERT_TRUE(places.ok());
  EXPECT_EQ(*places, (NetworkPlaces{{"10.0.0.1", "a/1"}, {"gpu7", "b/2"}}));
}

TEST(NetworkPlacesTest, AWrongLineIsNamed) {
  const auto message = [](std::string_view text) {
    return std::string(ParseNetworkPlaces(text).status().message());
  };
  EXPECT_NE(message("a b\nc\n").find("line 2 has 1 words"), std::string::npos);
  EXPECT_NE(message("a b\na c\n").find("line 2 names a a second time"), std::string::npos);
  EXPECT_NE(message("a " + std::string(300, 'x')).find("longer than 256"), std::string::npos);
}

}  // namespace
}  // namespace addend
