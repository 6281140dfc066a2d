// The loops whose speed a benchmark takes as the machine's limit, once for each instruction set.
//
// They do less than any store must: they never check a row, share nothing with a writer and have no second place to
// look. What they have in common with a store is what cannot be left out: one cache miss for the id, one or more for
// the row.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emberline::limits {

// Eight ids in 64 bytes; 0 marks an empty place. The place of an id, line * 8 + page queue, is where its row would lie.
struct alignas(64) IdLine {
  std::int64_t ids[8];
};
constexpr std::uint32_t kNowhere = 0xFFFFFFFFu;

struct Kernels {
  const char* name;
  // The line in which the search for an id begins, below count.
  std::uint64_t (*line_of)(std::int64_t id, std::uint64_t count);
  // places (n), written: where each id stands, or kNowhere.
  void (*find)(const IdLine* lines, std::uint64_t count, const std::int64_t* ids, std::size_t n, std::uint32_t* places);
  // out (n, row_bytes), written: copies of rows[numbers[i]].
  void (*gather)(const char* rows, std::size_t row_bytes, const std::int64_t* numbers, std::size_t n, char* out);
  // out (bags, dim), written: sums of the rows numbers[offsets[b]] to before numbers[offsets[b + 1]].
  void (*pool)(const float* rows, std::size_t dim, const std::int64_t* numbers, const std::int64_t* offsets,
               std::size_t bags, float* out);
};

const Kernels& portable_kernels();
const Kernels* avx2_kernels();  // null where the processor, or the compiler, has none
const Kernels* avx512_kernels();
// The best that runs here.
const Kernels& best_kernels();

}  // namespace emberline::limits
