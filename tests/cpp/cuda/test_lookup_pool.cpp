// Pooled lookups over a replica, against the host's own pooling: bags without a miss, and sums of hits, to the bit.
#include "lookup_pool.cuh"

#include <limits>
#include <tuple>

#include "check.h"
#include "replica.h"

using namespace replica;

namespace {

struct Shape {
  Format format;
  std::int64_t batch, rows, longest, pooling, align;
  Hits hits = Hits::kSome;
  bool has_differences = false;
};

// Every tile of the grid.
void run(Launch& launch, std::size_t features, std::int64_t warps) {
  for (std::size_t f = 0; f < features; ++f) {
    const auto number = static_cast<std::int64_t>(f);
    const int width = emberline::pool_width(emberline::feature_at(launch.lookup.features, launch.header, number));
    const std::int64_t threads = warps * emberline::kWarp;
    on_threads(threads / width,
               [&](std::int64_t tile) { emberline::pool_share(launch.lookup, number, tile * width, threads); });
  }
}

std::unique_ptr<Part> make_part(std::mt19937& random, Replica& on, const Shape& shape, std::uint32_t table) {
  std::vector<std::int64_t> offsets = random_offsets(random, shape.batch, shape.longest);
  std::vector<std::int64_t> ids = random_ids(random, offsets.back());
  fill(random, on, shape.format, table, ids, shape.hits);
  auto part = std::make_unique<Part>(on, shape.format, table, shape.pooling, ids, offsets,
                                     shape.rows * shape.format.dim * 4, shape.rows);
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < ids.size(); ++i) part->weights.push_back(normal(random));
  return part;
}

bool is_right(const Part& part, std::int64_t feature, const Shape& shape, Misses& expected) {
  const std::uint32_t dim = part.format.dim;
  std::vector<float> output(static_cast<std::size_t>(shape.rows) * dim, 0.0f);
  std::vector<std::uint8_t> states(static_cast<std::size_t>(shape.rows), 0);
  for (std::int64_t b = 0; b < std::min(shape.batch, shape.rows); ++b) {
    std::vector<const char*> rows;
    std::vector<float> weights;
    for (std::int64_t i = part.begin(b); i < part.end(b); ++i) {
      const float* row = part.row(i);
      rows.push_back(reinterpret_cast<const char*>(row));
      weights.push_back(part.weights.empty() ? 1.0f : part.weights[static_cast<std::size_t>(i)]);
      if (row != nullptr) continue;
      expected.emplace_back((feature << 48) | i, b);
      states[static_cast<std::size_t>(b)] = 1;
    }
    // Decoded rows: decoding before or while adding makes no difference to a bit.
    emberline::pool_rows({emberline::RowType::kFp32, dim}, rows.data(), weights.data(), rows.size(),
                         static_cast<emberline::Pooling>(shape.pooling),
                         output.data() + static_cast<std::size_t>(b) * dim);
  }
  return same(reinterpret_cast<const float*>(part.output.data), output.data(), output.size()) &&
         std::equal(states.begin(), states.end(), part.states.data);
}

bool pools(std::mt19937& random, const Shape& shape, std::int64_t warps = 3) {
  Replica on(emberline::encoded_bytes(shape.format.type, shape.format.dim), 4000, 600, shape.align);
  std::vector<std::unique_ptr<Part>> parts;
  for (const std::uint32_t table : {0u, 1u}) parts.push_back(make_part(random, on, shape, table));
  if (shape.has_differences) fill_differences(random, on, parts);
  Launch launch(parts, shape.batch, shape.rows);
  run(launch, parts.size(), warps);
  Misses expected;
  bool right = true;
  for (std::size_t f = 0; f < parts.size(); ++f) {
    right = right && is_right(*parts[f], static_cast<std::int64_t>(f), shape, expected);
  }
  std::sort(expected.begin(), expected.end());
  return right && launch.missed() == expected && launch.miss_count == expected.size();
}

}  // namespace

TEST(bags_of_every_type_and_width_have_the_bits_of_the_host) {
  std::mt19937 random(1);
  for (const int type : {0, 1, 2, 3, 4}) {
    for (const std::uint32_t dim :
         {1u,  2u,  3u,  4u,  5u,   7u,   8u,   12u,  15u,  16u,  17u,  28u,  31u,  32u,   33u,
          60u, 63u, 64u, 65u, 124u, 127u, 128u, 129u, 255u, 256u, 508u, 511u, 513u, 1023u, 1024u}) {
      const std::int64_t rows = 2 + random() % 4;
      for (const std::int64_t pooling : {0, 1, 3}) {
        CHECK(pools(random, {{type, dim}, rows, rows, 70, pooling, 4}));
        CHECK(pools(random, {{type, dim}, rows, rows + 1, 40, pooling, 16}));
      }
    }
  }
}

TEST(random_batches_have_the_bits_of_the_host) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 300; ++trial) {
    const Format format{static_cast<int>(random() % 5), static_cast<std::uint32_t>(1 + random() % 70)};
    const std::int64_t poolings[] = {0, 1, 3};
    Shape shape{format,
                static_cast<std::int64_t>(random() % 40),
                40,
                static_cast<std::int64_t>(random() % 12),
                poolings[random() % 3],
                4};
    shape.hits = static_cast<Hits>(random() % 3);
    shape.has_differences = random() % 2 == 0;
    CHECK(pools(random, shape, 1 + random() % 9));
  }
}

TEST(bags_of_one_id_or_none) {
  std::mt19937 random(3);
  for (const std::int64_t pooling : {0, 1, 3}) {
    CHECK(pools(random, {{0, 16}, 50, 64, 1, pooling, 16}));
    CHECK(pools(random, {{0, 16}, 50, 64, 0, pooling, 16}));
    CHECK(pools(random, {{0, 16}, 0, 64, 5, pooling, 16}));
  }
}

TEST(all_hit_and_all_miss) {
  std::mt19937 random(4);
  for (const Hits hits : {Hits::kAll, Hits::kNone}) CHECK(pools(random, {{1, 32}, 30, 32, 20, 1, 16, hits}));
}

TEST(a_batch_of_more_rows_than_the_output_is_cut_off) {
  std::mt19937 random(5);
  CHECK(pools(random, {{0, 16}, 12, 5, 6, 0, 16}));
}

TEST(sizes_that_make_no_sense_read_and_write_nothing_outside) {
  std::mt19937 random(6);
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max(),
                         kLeast = std::numeric_limits<std::int64_t>::min();
  constexpr int kMostId = std::numeric_limits<int>::max(), kLeastId = std::numeric_limits<int>::min();
  Replica on(16, 4000, 600, 16);
  std::vector<std::unique_ptr<Part>> parts;
  parts.push_back(make_part(random, on, {{0, 4}, 6, 6, 5, 3, 16}, 1));
  for (const auto& [batch, first, last] : {std::tuple{kMost, kLeastId, kMostId}, {kLeast, 0, 4}, {6L, 5, -3}}) {
    parts[0]->ranges.front().begin = first;
    parts[0]->ranges.back().end = last;
    Launch launch(parts, batch, 6);
    run(launch, 1, 2);
    for (const int word : {0, 1, 2}) {  // offset of the ids, their number, offset of the ranges
      Launch without_ids(parts, 6, 6);
      without_ids.packed_feature(0)[word] = word == 1 ? kLeast : 131;
      run(without_ids, 1, 2);
      const Bytes& output = parts[0]->output;
      CHECK(without_ids.miss_count == 0);
      CHECK(std::all_of(output.data, output.data + output.size, [](std::uint8_t byte) { return byte == 0; }));
    }
  }
}

TEST(rows_may_share_their_ids) {
  std::mt19937 random(7);
  for (const std::int64_t pooling : {0, 1, 3}) {
    const Shape shape{{0, 8}, 20, 24, 50, pooling, 16};
    Replica on(32, 4000, 600, 16);
    std::vector<std::unique_ptr<Part>> parts;
    parts.push_back(make_part(random, on, shape, 3));
    fill_differences(random, on, parts);
    for (emberline::PackedRange& range : parts[0]->ranges) range = parts[0]->ranges[random() % 20];
    Launch launch(parts, shape.batch, shape.rows);
    run(launch, 1, 2);
    Misses expected;
    CHECK(is_right(*parts[0], 0, shape, expected));
    std::sort(expected.begin(), expected.end());
    CHECK(launch.missed() == expected);
  }
}

TEST(without_weights_all_are_one) {
  std::mt19937 random(8);
  const Shape shape{{1, 12}, 20, 20, 9, 3, 16};
  Replica on(24, 4000, 600, 8);
  std::vector<std::unique_ptr<Part>> parts;
  parts.push_back(make_part(random, on, shape, 0));
  parts[0]->weights.clear();
  Launch launch(parts, shape.batch, shape.rows);
  run(launch, 1, 1);
  Misses expected;
  CHECK(is_right(*parts[0], 0, shape, expected));
}

RUN_ALL_TESTS()
