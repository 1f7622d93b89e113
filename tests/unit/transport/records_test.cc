// Encrypted records open to the same bytes, and changed records do not open.
#include "lib/transport/tcp/records.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>

#include "lib/base/status_macros.h"

namespace addend::tcp {
namespace {

RecordKey Key(int first) {
  RecordKey key{};
  key[0] = std::byte(first);
  return key;
}

std::vector<std::byte> Random(size_t bytes, uint32_t seed) {
  std::mt19937 source(seed);
  std::vector<std::byte> made(bytes);
  for (std::byte& one : made) one = std::byte(source());
  return made;
}

std::vector<std::byte> Sealed(Sealer* sealer, const std::vector<std::byte>& plain) {
  const iovec vector{const_cast<std::byte*>(plain.data()), plain.size()};
  std::vector<std::byte> sealed(Sealer::SealedBytes(plain.size()));
  EXPECT_EQ(sealer->Seal(&vector, 1, sealed.data()), sealed.data() + sealed.size());
  return sealed;
}

// Feeds the stream in parts of so many bytes, and takes the opened bytes in parts of another size.
absl::Status OpenAll(Opener* opener, const std::vector<std::byte>& stream, size_t part,
                     std::vector<std::byte>* plain) {
  std::vector<std::byte> room(part / 2 + 1);
  const iovec vector{room.data(), room.size()};
  for (size_t at = 0; at < stream.size();) {
    const MutableBytes free = opener->room();
    const size_t fed = std::min({part, stream.size() - at, free.size()});
    std::copy_n(stream.begin() + static_cast<std::ptrdiff_t>(at), fed, free.begin());
    opener->Got(fed);
    at += fed;
    while (!opener->empty()) {
      ADDEND_ASSIGN_OR_RETURN(const size_t taken, opener->Take(&vector, 1));
      plain->insert(plain->end(), room.begin(), room.begin() + static_cast<std::ptrdiff_t>(taken));
    }
  }
  return absl::OkStatus();
}

TEST(RecordsTest, SealedRecordsOpenInAnySegmentation) {
  const auto plain = Random(300'000, 1);
  for (const size_t part : {size_t{1000}, size_t{16'404}, size_t{1} << 20}) {
    Sealer sealer(Key(1));
    Opener opener(Key(1));
    std::vector<std::byte> opened;
    ASSERT_TRUE(OpenAll(&opener, Sealed(&sealer, plain), part, &opened).ok());
    EXPECT_EQ(opened, plain) << part;
  }
}

TEST(RecordsTest, SeveralPiecesAreOneStream) {
  const auto plain = Random(1000, 2);
  auto* const bytes = const_cast<std::byte*>(plain.data());
  const iovec pieces[] = {{bytes, 10}, {bytes + 10, 0}, {bytes + 10, 990}};
  Sealer sealer(Key(1));
  std::vector<std::byte> sealed(Sealer::SealedBytes(plain.size()));
  sealer.Seal(pieces, 3, sealed.data());
  Opener opener(Key(1));
  std::vector<std::byte> opened;
  ASSERT_TRUE(OpenAll(&opener, sealed, sealed.size(), &opened).ok());
  EXPECT_EQ(opened, plain);
}

// A record lies across payloads and the header behind them.
TEST(RecordsTest, BytesAreOpenedToSeveralPlaces) {
  const auto plain = Random(2 * kRecordBytes + 50, 7);
  Sealer sealer(Key(1));
  Opener opener(Key(1));
  const auto sealed = Sealed(&sealer, plain);
  std::copy(sealed.begin(), sealed.end(), opener.room().begin());
  opener.Got(sealed.size());
  std::vector<std::byte> opened(plain.size());
  size_t at = 0;
  for (const size_t first : {size_t{10}, kRecordBytes - 5, size_t{5000}}) {
    const size_t second = std::min<size_t>(96, opened.size() - at - first);
    const iovec places[] = {{opened.data() + at, first},
                            {opened.data() + at + first, 0},
                            {opened.data() + at + first, second}};
    const auto taken = opener.Take(places, 3);
    ASSERT_TRUE(taken.ok()) << taken.status();
    ASSERT_EQ(*taken, first + second);
    at += *taken;
  }
  const iovec rest{opened.data() + at, opened.size() - at};
  ASSERT_EQ(*opener.Take(&rest, 1), rest.iov_len);
  EXPECT_EQ(opened, plain);
  EXPECT_TRUE(opener.empty());
}

TEST(RecordsTest, ARecordIsTakenOnlyWhenAllOfItHasCome) {
  Sealer sealer(Key(1));
  Opener opener(Key(1));
  const auto sealed = Sealed(&sealer, Random(100, 8));
  std::copy(sealed.begin(), sealed.end() - 1, opener.room().begin());
  opener.Got(sealed.size() - 1);
  std::vector<std::byte> room(100);
  const iovec place{room.data(), room.size()};
  EXPECT_TRUE(opener.empty());
  EXPECT_EQ(*opener.Take(&place, 1), 0U);
  opener.room()[0] = sealed.back();
  opener.Got(1);
  EXPECT_EQ(*opener.Take(&place, 1), 100U);
}

// Each library opens what the other has sealed, so two ends may choose differently.
TEST(RecordsTest, AllLibrariesMakeTheSameRecords) {
  const auto plain = Random(100'000, 9);
  std::vector<std::byte> first;
  for (const AesLibrary& seals : AesLibraries()) {
    Sealer sealer(Key(3), /*records_per_key=*/2, seals);
    const auto sealed = Sealed(&sealer, plain);
    if (first.empty()) first = sealed;
    EXPECT_EQ(sealed, first) << seals.name;
    for (const AesLibrary& opens : AesLibraries()) {
      Opener opener(Key(3), /*records_per_key=*/2, opens);
      std::vector<std::byte> opened;
      ASSERT_TRUE(OpenAll(&opener, sealed, 5000, &opened).ok()) << seals.name << opens.name;
      EXPECT_EQ(opened, plain);
      auto changed = sealed;
      changed[sealed.size() / 2] ^= std::byte{1};
      Opener strict(Key(3), /*records_per_key=*/2, opens);
      EXPECT_TRUE(absl::IsDataLoss(OpenAll(&strict, changed, 5000, &opened))) << opens.name;
    }
  }
}

TEST(RecordsTest, NoPlainTextIsVisible) {
  const std::vector<std::byte> plain(64, std::byte{'A'});
  Sealer sealer(Key(1));
  const auto first = Sealed(&sealer, plain);
  const auto second = Sealed(&sealer, plain);
  EXPECT_EQ(std::search(first.begin(), first.end(), plain.begin(), plain.begin() + 4), first.end());
  EXPECT_NE(first, second) << "the same text is another record each time";
}

TEST(RecordsTest, ARecordWithAChangedBitDoesNotOpen) {
  const auto plain = Random(100, 3);
  Sealer sealer(Key(1));
  const auto sealed = Sealed(&sealer, plain);
  for (size_t bit = 0; bit < sealed.size() * 8; ++bit) {
    auto changed = sealed;
    changed[bit / 8] ^= std::byte(1 << bit % 8);
    changed.resize(changed.size() + (1 << 16));  // the changed length may be larger
    Opener opener(Key(1));
    std::vector<std::byte> opened;
    EXPECT_EQ(OpenAll(&opener, changed, changed.size(), &opened).code(),
              absl::StatusCode::kDataLoss)
        << bit;
    EXPECT_TRUE(opened.empty());
  }
}

TEST(RecordsTest, RecordsThatAreMissingRepeatedOrSwappedDoNotOpen) {
  Sealer sealer(Key(1));
  const auto first = Sealed(&sealer, Random(10, 4));
  const auto second = Sealed(&sealer, Random(10, 5));
  const auto opens = [](std::vector<std::byte> a, const std::vector<std::byte>& b) {
    a.insert(a.end(), b.begin(), b.end());
    Opener opener(Key(1));
    std::vector<std::byte> opened;
    return OpenAll(&opener, a, a.size(), &opened).ok();
  };
  EXPECT_TRUE(opens(first, second));
  EXPECT_FALSE(opens(second, first));
  EXPECT_FALSE(opens(first, first));
  EXPECT_FALSE(opens(second, {}));
}

TEST(RecordsTest, RecordsDoNotOpenWithAnotherKey) {
  Sealer sealer(Key(1));
  Opener opener(Key(2));
  std::vector<std::byte> opened;
  const auto sealed = Sealed(&sealer, Random(10, 6));
  EXPECT_EQ(OpenAll(&opener, sealed, sealed.size(), &opened).code(), absl::StatusCode::kDataLoss);
}

TEST(RecordsTest, BothEndsChangeTheKeyAfterItsNumberOfRecords) {
  Sealer sealer(Key(1), /*records_per_key=*/3);
  Opener opener(Key(1), /*records_per_key=*/3);
  std::vector<std::byte> first;
  for (uint32_t i = 0; i < 10; ++i) {
    const std::vector<std::byte> plain(64, std::byte{7});
    const auto sealed = Sealed(&sealer, plain);
    if (i == 0) first = sealed;
    if (i == 3 || i == 6) {
      EXPECT_NE(sealed, first) << "the same number, with another key";
    }
    std::vector<std::byte> opened;
    ASSERT_TRUE(OpenAll(&opener, sealed, sealed.size(), &opened).ok()) << i;
    EXPECT_EQ(opened, plain);
  }
}

TEST(RecordsTest, AKeyOpensNoRecordAfterItsLast) {
  Sealer sealer(Key(1), /*records_per_key=*/3);
  Opener opener(Key(1), /*records_per_key=*/1000);
  std::vector<std::byte> opened;
  for (uint32_t i = 0; i < 3; ++i) {
    const auto sealed = Sealed(&sealer, Random(10, i));
    ASSERT_TRUE(OpenAll(&opener, sealed, sealed.size(), &opened).ok()) << i;
  }
  const auto fourth = Sealed(&sealer, Random(10, 3));
  EXPECT_TRUE(absl::IsDataLoss(OpenAll(&opener, fourth, fourth.size(), &opened)));
}

TEST(RecordsTest, AKeyIsUsedFarBelowItsLimit) { EXPECT_LE(kRecordsPerKey, uint64_t{1} << 20); }

}  // namespace
}  // namespace addend::tcp
