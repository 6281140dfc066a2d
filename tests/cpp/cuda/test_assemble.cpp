// `assemble` against an obvious reference, over the functions that the kernel itself runs.
#include <limits>

#include "check.h"
#include "packed_batch.h"

using packed::Batch;
using packed::Packed;

namespace {

// Whether every byte and the stamp are as the reference has them.
bool is_right(const Packed& packed, std::int64_t blocks, std::int64_t block_threads) {
  std::int64_t stamp = 0;
  return packed.assembled(blocks, block_threads, &stamp) == packed.reference() && stamp == packed::kStamp;
}

std::int64_t below(std::mt19937& random, std::int64_t bound) {
  return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(bound));
}

}  // namespace

TEST(rows_of_every_width_arrive) {
  std::mt19937 random(1);
  for (std::int64_t width = 1; width <= 1000; ++width) {
    const Batch shape{{{width, false}, {width, true}}, 1 + below(random, 4), 4, below(random, 3)};
    CHECK(is_right(Packed(shape, random), 1 + below(random, 3), 32));
  }
}

TEST(every_unit_is_used) {
  bool seen[5] = {};
  for (std::int64_t width = 1; width <= 1000; ++width) seen[packed::unit_log2(width)] = true;
  for (const bool unit : seen) CHECK(unit);
  CHECK(packed::unit_log2(48) == 4 && packed::unit_log2(24) == 3 && packed::unit_log2(0) == 0);
}

TEST(random_batches_arrive) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 300; ++trial) {
    Batch shape{{}, below(random, 40), 1 + below(random, 40), below(random, 2) * (1 + below(random, 10))};
    for (std::int64_t i = below(random, 7); i > 0; --i) {
      // Mostly numbers of four and eight bytes, as in a model.
      const std::int64_t item = std::int64_t{1} << below(random, 4);
      shape.inputs.push_back({item * below(random, 60), below(random, 2) == 1});
    }
    CHECK(is_right(Packed(shape, random), 1 + below(random, 5), 32 * (1 + below(random, 2))));
  }
}

TEST(an_empty_batch_is_zeros_and_its_stamp) {
  std::mt19937 random(3);
  CHECK(is_right(Packed({{{16, false}, {3, true}, {0, false}}, 0, 5, 0}, random), 2, 32));
  CHECK(is_right(Packed({{{16, false}, {3, true}}, 0, 5, 2}, random), 2, 32));
}

TEST(a_batch_of_more_rows_than_the_tensors_is_cut_off) {
  std::mt19937 random(4);
  CHECK(is_right(Packed({{{16, false}, {12, true}}, 9, 4, 3}, random), 1, 32));
  CHECK(is_right(Packed({{{16, false}, {12, true}}, 9, 0, 3}, random), 1, 32));
}

TEST(a_header_that_makes_no_sense_reads_nothing_outside_staging) {
  std::mt19937 random(5);
  // As many rows as the tensors have are there; the header promises more, or fewer than none.
  Packed packed({{{24, false}, {12, true}}, 6, 6, 2}, random);
  std::int64_t stamp = 0;
  const auto full = packed.assembled(1, 32, &stamp);
  packed.set_word(emberline::kBatchWord, std::numeric_limits<std::int64_t>::max());
  CHECK(packed.assembled(1, 32, &stamp) == full);
  packed.set_word(emberline::kBatchWord, std::numeric_limits<std::int64_t>::min());
  const auto none = packed.assembled(1, 32, &stamp);
  CHECK(std::all_of(none.begin(), none.begin() + 6 * 24, [](std::uint8_t byte) { return byte == 0; }));
}

TEST(a_row_of_nobodys_is_zeros) {
  std::mt19937 random(6);
  for (const int nobody : {-1, 2, std::numeric_limits<int>::max(), std::numeric_limits<int>::min()}) {
    Packed packed({{{20, true}}, 3, 3, 2}, random);
    packed.set_user(0, 0);
    packed.set_user(2, 1);
    packed.set_user(1, 0);
    auto expected = packed.reference();
    std::fill_n(expected.begin() + 20, 20, std::uint8_t{0});
    packed.set_user(1, nobody);
    std::int64_t stamp = 0;
    CHECK(packed.assembled(2, 32, &stamp) == expected);
  }
}

TEST(a_graph_without_inputs_gets_its_stamp) {
  std::mt19937 random(7);
  CHECK(is_right(Packed({{}, 4, 4, 0}, random), 1, 32));
}

RUN_ALL_TESTS()
