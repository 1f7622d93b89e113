// lib/client/pieces.h as a specification: agent and library compute the pieces alike, so the pieces
// must be valid.
#include "lib/client/pieces.h"

#include <gmock/gmock.h>

#include <set>

#include "tests/unit/cuda/ranks.h"

namespace addend::client {
namespace {

TEST(PiecesTest, EveryElementOfEveryChunkIsInOnePiece) {
  const uint64_t chunk = ipc::ChunkElements(4);
  for (const uint64_t elements :
       {uint64_t{1}, uint64_t{7}, uint64_t{129}, chunk - 1, chunk, chunk + 1, 3 * chunk + 5}) {
    for (uint32_t members = 1; members <= 9; ++members) {
      for (const Layout& layout : LayoutsOf(members)) {
        const ipc::Group group = GroupOf(layout, members, 0);
        uint64_t next = 0;
        for (uint64_t c = 0; c < ipc::Chunks(elements, 4); ++c) {
          ASSERT_EQ(ipc::ChunkAt(c, elements, 4).begin, next);
          uint64_t covered = 0;
          for (uint32_t member = 0; member < members; ++member) {
            const ipc::Piece piece = ipc::PieceOf(group, 3, c, member, elements, 4);
            ASSERT_LE(piece.begin, piece.end);
            if (layout.scatter) {
              ASSERT_EQ(piece.begin, next + covered);
            }
            covered += piece.elements();
          }
          next = ipc::ChunkAt(c, elements, 4).end;
          ASSERT_EQ(covered, ipc::ChunkAt(c, elements, 4).elements());
        }
        ASSERT_EQ(next, elements);
      }
    }
  }
}

TEST(PiecesTest, PiecesBeginAligned) {
  for (const uint64_t size : {2, 4, 8}) {
    const uint64_t elements = 2 * ipc::ChunkElements(size) + 12345;
    for (uint32_t members = 1; members <= 9; ++members) {
      const ipc::Group group = GroupOf({"", true, {}}, members, 0);
      for (uint64_t c = 0; c < ipc::Chunks(elements, size); ++c) {
        for (uint32_t member = 0; member < members; ++member) {
          const ipc::Piece piece = ipc::PieceOf(group, 0, c, member, elements, size);
          ASSERT_EQ(piece.begin * size % ipc::kPieceAlignment, 0);
        }
      }
    }
  }
}

TEST(PiecesTest, RootsTakeTurnsByChunkAndTensor) {
  const ipc::Group group = GroupOf({"", false, {1, 3}}, 4, 0);
  EXPECT_EQ(ipc::RootOf(group, 0, 0), 1u);
  EXPECT_EQ(ipc::RootOf(group, 0, 1), 3u);
  EXPECT_EQ(ipc::RootOf(group, 0, 2), 1u);
  EXPECT_EQ(ipc::RootOf(group, 1, 0), 3u);
}

}  // namespace
}  // namespace addend::client
