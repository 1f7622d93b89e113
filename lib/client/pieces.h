// The pieces of a tensor that a GPU's rank copies to host memory, and takes back, when the ranks of
// a group have aggregated on their GPUs. Pure; agent and library agree because both compute the
// pieces with these functions.
//
// A tensor is split into chunks. Either every member of the group has a piece of each chunk (after
// a reduce-scatter), or a single member, the root, has all of it (after a reduce); roots alternate.
#pragma once

#include <algorithm>
#include <cstdint>

namespace addend::ipc {

inline constexpr uint64_t kChunkBytes = 4 << 20;
inline constexpr uint32_t kMaxGroup = 64;
// Pieces begin at multiples of this, so that copies and kernels are aligned.
inline constexpr uint64_t kPieceAlignment = 512;

// Ranks of a node whose GPUs aggregate among themselves, and this rank's number in the group.
struct Group {
  uint32_t members = 1;
  uint32_t member = 0;     // this rank's number, in ascending order of local ranks
  bool scatter = false;    // every member has a piece of each chunk; else the root has all of it
  uint32_t num_roots = 1;  // without `scatter`; at least 1
  uint32_t roots[kMaxGroup] = {};
};

// A range of elements, from `begin` to before `end`, counted from the tensor's first element.
struct Piece {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t elements() const { return end - begin; }
};

inline uint64_t ChunkElements(uint64_t element_bytes) { return kChunkBytes / element_bytes; }

inline uint64_t Chunks(uint64_t elements, uint64_t element_bytes) {
  const uint64_t chunk = ChunkElements(element_bytes);
  return (elements + chunk - 1) / chunk;
}

inline Piece ChunkAt(uint64_t chunk, uint64_t elements, uint64_t element_bytes) {
  const uint64_t size = ChunkElements(element_bytes);
  return {chunk * size, std::min((chunk + 1) * size, elements)};
}

// The member that has all of a chunk; only without `scatter`. `tensor`: its number.
inline uint32_t RootOf(const Group& group, uint32_t tensor, uint64_t chunk) {
  return group.roots[(tensor + chunk) % group.num_roots];
}

// The piece of a chunk that `member` has; may be empty. The last member takes the remainder.
inline Piece PieceOf(const Group& group, uint32_t tensor, uint64_t chunk, uint32_t member,
                     uint64_t elements, uint64_t element_bytes) {
  const Piece whole = ChunkAt(chunk, elements, element_bytes);
  if (!group.scatter) {
    const bool root = RootOf(group, tensor, chunk) == member;
    return root ? whole : Piece{whole.begin, whole.begin};
  }
  const uint64_t step = kPieceAlignment / element_bytes;
  const uint64_t each = whole.elements() / group.members / step * step;
  const uint64_t begin = whole.begin + member * each;
  return {begin, member + 1 == group.members ? whole.end : begin + each};
}

}  // namespace addend::ipc
