// A suite for every store; then failures that only a file can have.
#include "services/scheduler/store/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "lib/base/failure.h"
#include "lib/base/strings.h"

namespace addend {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "addend-store-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string File(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

std::unique_ptr<Store> MustOpen(const std::string& where) {
  auto store = OpenStore(where);
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? *std::move(store) : nullptr;
}

class StoreTest : public testing::TestWithParam<std::string> {
 protected:
  StoreTest() : where_(GetParam() == "memory" ? "memory" : "sqlite:" + dir_.File("s.db")) {}

  TempDir dir_;
  const std::string where_;
};

TEST_P(StoreTest, StartsEmptyAndNamesItself) {
  const auto store = MustOpen(where_);
  EXPECT_TRUE(store->Load()->empty());
  EXPECT_EQ(store->Describe(), where_);
}

TEST_P(StoreTest, LoadsWhatWasWrittenInOrderOfKeys) {
  const auto store = MustOpen(where_);
  ASSERT_TRUE(store->Apply(std::vector<StoreWrite>{{"b", "2"}, {"a", "1"}, {"c", "3"}}).ok());
  ASSERT_TRUE(store->Apply(std::vector<StoreWrite>{{"b", std::nullopt}, {"a", "4"}}).ok());
  EXPECT_THAT(*store->Load(), ElementsAre(Pair("a", "4"), Pair("c", "3")));
}

TEST_P(StoreTest, LaterWritesOfABatchWin) {
  const auto store = MustOpen(where_);
  ASSERT_TRUE(store->Apply(std::vector<StoreWrite>{{"a", std::nullopt}, {"a", "1"}}).ok());
  EXPECT_THAT(*store->Load(), ElementsAre(Pair("a", "1")));
}

TEST_P(StoreTest, KeepsAnyBytesAndEmptyValues) {
  const auto store = MustOpen(where_);
  const std::string bytes("\0\xff'\"\n", 5);
  ASSERT_TRUE(store->Apply(std::vector<StoreWrite>{{"a", bytes}, {"b", ""}}).ok());
  EXPECT_THAT(*store->Load(), ElementsAre(Pair("a", bytes), Pair("b", "")));
}

INSTANTIATE_TEST_SUITE_P(All, StoreTest, testing::Values("memory", "sqlite"),
                         [](const auto& info) { return info.param; });

TEST(SqliteStoreTest, OutlivesItsProcessesWithoutBeingClosedByThem) {
  TempDir dir;
  const std::string where = "sqlite:" + dir.File("s.db");
  {
    const auto store = MustOpen(where);
    ASSERT_TRUE(store->Apply(std::vector<StoreWrite>{{"a", "1"}}).ok());
  }
  EXPECT_THAT(*MustOpen(where)->Load(), ElementsAre(Pair("a", "1")));
}

TEST(SqliteStoreTest, DatabaseBelongsToOneSchedulerAtATime) {
  TempDir dir;
  const std::string where = "sqlite:" + dir.File("s.db");
  const auto first = MustOpen(where);
  const auto second = OpenStore(where);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(second.status()), HasSubstr("in use by another process"));
}

TEST(SqliteStoreTest, FileThatIsNoDatabaseIsNamed) {
  TempDir dir;
  std::ofstream(dir.File("s.db")) << std::string(5000, 'x');
  const auto store = OpenStore("sqlite:" + dir.File("s.db"));
  EXPECT_EQ(store.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(KindOf(store.status()), FailureKind::kInvalid);
  EXPECT_THAT(Message(store.status()), HasSubstr(dir.File("s.db")));
  EXPECT_THAT(Message(store.status()), HasSubstr("move it away"));
}

TEST(SqliteStoreTest, DamagedDatabaseIsNamedAndNotOverwritten) {
  TempDir dir;
  const std::string file = dir.File("s.db");
  {
    const auto store = MustOpen("sqlite:" + file);
    std::vector<StoreWrite> writes;
    for (int i = 0; i < 1000; ++i) writes.push_back({std::to_string(i), std::string(100, 'v')});
    ASSERT_TRUE(store->Apply(writes).ok());
  }
  const auto size = std::filesystem::file_size(file);
  ASSERT_GT(size, 20000u);
  std::fstream damaged(file, std::ios::in | std::ios::out | std::ios::binary);
  damaged.seekp(4096);
  damaged << std::string(8192, '\x5a');
  damaged.close();
  auto store = OpenStore("sqlite:" + file);
  const absl::Status status = store.ok() ? (*store)->Load().status() : store.status();
  EXPECT_THAT(Message(status), HasSubstr("not an undamaged scheduler database"));
  EXPECT_EQ(std::filesystem::file_size(file), size);
}

TEST(SqliteStoreTest, MissingFolderNamesTheWayOut) {
  const auto store = OpenStore("sqlite:/does/not/exist/s.db");
  EXPECT_EQ(KindOf(store.status()), FailureKind::kPermission);
  EXPECT_THAT(Message(store.status()), HasSubstr("--store=memory"));
}

TEST(OpenStoreTest, MalformedStoreNamesAreRefusedWithTheRightForm) {
  EXPECT_EQ((*OpenStore("etcd:http://localhost:2379"))->Describe(), "etcd:http://localhost:2379");
  for (const char* where : {"etcd:", "etcd:host", "etcd:a:1,b", "etcd:https://a:1"}) {
    const auto store = OpenStore(where);
    EXPECT_EQ(store.status().code(), absl::StatusCode::kInvalidArgument) << where;
    EXPECT_THAT(Message(store.status()), HasSubstr("etcd:HOST:PORT")) << where;
  }
  EXPECT_EQ(OpenStore("postgres:x").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenStore("sqlite:").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace addend
