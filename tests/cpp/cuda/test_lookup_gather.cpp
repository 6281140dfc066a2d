// Unpooled lookups over a replica, against a map and the host's codec: every lane of a grid runs the kernel's own code.
#include "lookup_gather.cuh"

#include <limits>
#include <set>
#include <tuple>

#include "check.h"
#include "replica.h"

using namespace replica;

namespace {

struct Shape {
  Format format;
  std::int64_t batch, rows, longest, length, align;
  Hits hits = Hits::kSome;
  bool has_differences = false;
};

template <class Output>
void run(Launch& launch, std::size_t features, std::int64_t warps) {
  on_threads(static_cast<std::int64_t>(features) * warps, [&](std::int64_t number) {
    emberline::gather_share<Output>(emberline::Tile(emberline::kWarp), launch.lookup, number / warps, number % warps,
                                    warps);
  });
}

// Checks output, states and misses of a feature; appends what must be in the list.
template <class Output>
bool is_right(const Part& part, std::int64_t feature, const Shape& shape, Misses& expected) {
  const std::int64_t rows = shape.length > 0 ? shape.rows * shape.length : static_cast<std::int64_t>(part.ids.size());
  const std::uint32_t dim = part.format.dim;
  std::vector<typename Output::Value> output(static_cast<std::size_t>(rows) * dim, 0);
  std::vector<std::uint8_t> states(static_cast<std::size_t>(rows), 0);
  const auto put = [&](std::int64_t row, std::int64_t id_number) {
    const float* found = part.row(id_number);
    if (found == nullptr) {
      expected.emplace_back((feature << 48) | id_number, row);
      return;
    }
    states[static_cast<std::size_t>(row)] = 1;
    for (std::uint32_t d = 0; d < dim; ++d) output[static_cast<std::size_t>(row) * dim + d] = Output::of(found[d]);
  };
  if (shape.length == 0) {
    for (std::int64_t i = 0; shape.batch > 0 && i < rows; ++i) put(i, i);
  } else {
    for (std::int64_t row = 0; row < std::min(shape.batch, shape.rows); ++row) {
      for (std::int64_t at = 0; at < std::min(part.end(row) - part.begin(row), shape.length); ++at) {
        put(row * shape.length + at, part.begin(row) + at);
      }
    }
  }
  return part.output.size == output.size() * sizeof(output[0]) &&
         (output.empty() || std::memcmp(part.output.data, output.data(), part.output.size) == 0) &&
         std::equal(states.begin(), states.end(), part.states.data);
}

std::unique_ptr<Part> make_part(std::mt19937& random, Replica& on, const Shape& shape, std::uint32_t table,
                                std::int64_t value_bytes) {
  const std::vector<std::int64_t> offsets = random_offsets(random, shape.batch, shape.longest);
  std::vector<std::int64_t> ids = random_ids(random, offsets.back());
  fill(random, on, shape.format, table, ids, shape.hits);
  const std::int64_t rows = shape.length > 0 ? shape.rows * shape.length : offsets.back();
  return std::make_unique<Part>(on, shape.format, table, shape.length, ids, offsets,
                                rows * shape.format.dim * value_bytes, rows, shape.length > 0 ? kNoBound : rows);
}

template <class Output>
bool gathers(std::mt19937& random, const Shape& shape, std::int64_t warps = 3) {
  const std::int64_t row_bytes = emberline::encoded_bytes(shape.format.type, shape.format.dim);
  Replica on(row_bytes, 4000, 600, shape.align);
  std::vector<std::unique_ptr<Part>> parts;
  for (const std::uint32_t table : {3u, 4u})
    parts.push_back(make_part(random, on, shape, table, sizeof(typename Output::Value)));
  if (shape.has_differences) fill_differences(random, on, parts);
  Launch launch(parts, shape.batch, shape.rows);
  run<Output>(launch, parts.size(), warps);
  Misses expected;
  bool right = true;
  for (std::size_t f = 0; f < parts.size(); ++f) {
    right = right && is_right<Output>(*parts[f], static_cast<std::int64_t>(f), shape, expected);
  }
  std::sort(expected.begin(), expected.end());
  return right && launch.missed() == expected && launch.miss_count == expected.size();
}

}  // namespace

TEST(rows_of_every_type_and_width_arrive) {
  std::mt19937 random(1);
  for (const int type : {0, 1, 2, 3, 4}) {
    for (const std::uint32_t dim :
         {1u,  2u,  3u,  4u,  5u,   7u,   8u,   12u,  15u,  16u,  17u,  28u,  31u,  32u,   33u,
          60u, 63u, 64u, 65u, 124u, 127u, 128u, 129u, 255u, 256u, 508u, 511u, 513u, 1023u, 1024u}) {
      const std::int64_t rows = 3 + random() % 5;
      for (const std::int64_t align : {4, 16}) {
        CHECK(gathers<emberline::Fp32Output>(random, {{type, dim}, rows, rows, 9, 0, align}));
      }
      CHECK(gathers<emberline::Fp16Output>(random, {{type, dim}, rows, rows + 1, 9, 4, 16}));
      CHECK(gathers<emberline::Bf16Output>(random, {{type, dim}, rows, rows + 1, 9, 4, 32}));
    }
  }
}

TEST(random_batches_arrive) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 300; ++trial) {
    const Format format{static_cast<int>(random() % 5), static_cast<std::uint32_t>(1 + random() % 70)};
    Shape shape{format,
                static_cast<std::int64_t>(random() % 40),
                40,
                static_cast<std::int64_t>(random() % 12),
                static_cast<std::int64_t>(random() % 6),
                4};
    shape.hits = static_cast<Hits>(random() % 3);
    shape.has_differences = random() % 2 == 0;
    CHECK(gathers<emberline::Fp32Output>(random, shape, 1 + random() % 9));
  }
}

TEST(an_empty_batch_is_zeros) {
  std::mt19937 random(3);
  CHECK(gathers<emberline::Fp32Output>(random, {{0, 16}, 0, 8, 3, 4, 16}));
  CHECK(gathers<emberline::Fp32Output>(random, {{3, 17}, 0, 8, 3, 0, 16}));
  CHECK(gathers<emberline::Fp16Output>(random, {{1, 16}, 5, 8, 0, 4, 16}));  // no ids at all
}

TEST(a_batch_of_more_rows_than_the_output_is_cut_off) {
  std::mt19937 random(4);
  CHECK(gathers<emberline::Fp32Output>(random, {{0, 16}, 12, 5, 6, 3, 16}));
}

TEST(all_hit_and_all_miss) {
  std::mt19937 random(5);
  for (const Hits hits : {Hits::kAll, Hits::kNone}) {
    CHECK(gathers<emberline::Fp32Output>(random, {{0, 32}, 30, 32, 8, 0, 16, hits}));
  }
}

// Two buckets are as few as there can be: half of the owners stand in their second.
TEST(full_buckets_send_one_to_the_second) {
  std::mt19937 random(6);
  std::int64_t seconds = 0;
  for (int trial = 0; trial < 50; ++trial) {
    Replica on(16, 100, 2 + trial % 3, 16);
    std::vector<std::unique_ptr<Part>> parts;
    const Shape shape{{0, 4}, 10, 10, 9, 0, 16, Hits::kSome};
    for (const std::uint32_t table : {0u, 65535u}) parts.push_back(make_part(random, on, shape, table, 4));
    seconds += on.seconds;
    Launch launch(parts, 10, 10);
    run<emberline::Fp32Output>(launch, parts.size(), 2);
    Misses expected;
    for (std::size_t f = 0; f < 2; ++f) {
      CHECK(is_right<emberline::Fp32Output>(*parts[f], static_cast<std::int64_t>(f), shape, expected));
    }
    std::sort(expected.begin(), expected.end());
    CHECK(launch.missed() == expected);
  }
  CHECK(seconds > 50);
}

TEST(a_list_that_is_too_short_still_counts) {
  std::mt19937 random(7);
  Replica on(16, 4000, 600, 16);
  std::vector<std::unique_ptr<Part>> parts;
  const Shape shape{{0, 4}, 30, 30, 9, 0, 16, Hits::kNone};
  parts.push_back(make_part(random, on, shape, 1, 4));
  Launch launch(parts, 30, 30, 10);
  run<emberline::Fp32Output>(launch, 1, 3);
  CHECK(launch.miss_count == parts[0]->ids.size() && launch.miss_count > 10);
  const Misses missed = launch.missed();
  CHECK(std::set(missed.begin(), missed.end()).size() == 10);
}

TEST(a_sample_of_the_lookups_marks_its_rows) {
  std::mt19937 random(8);
  Replica on(16, 4000, 600, 16);
  std::vector<std::unique_ptr<Part>> parts;
  const Shape shape{{0, 4}, 30, 30, 40, 0, 16, Hits::kAll};
  parts.push_back(make_part(random, on, shape, 1, 4));
  std::vector<std::size_t> marked;
  std::vector<std::uint8_t> any(parts[0]->uses.size, 0);
  for (const std::int64_t mask : {-1, 0, 7}) {
    for (int batch = 0; batch < 60; ++batch) {
      std::memset(parts[0]->uses.data, 0, parts[0]->uses.size);
      Launch launch(parts, 30, 30);
      launch.header[0] = batch;
      launch.lookup.use_mask = mask;
      run<emberline::Fp32Output>(launch, 1, 3);
      const auto* uses = parts[0]->uses.data;
      for (std::size_t s = 0; mask == 7 && s < any.size(); ++s) any[s] |= uses[s];
      if (batch == 0) marked.push_back(static_cast<std::size_t>(std::count(uses, uses + any.size(), 1)));
      CHECK(uses[0] == 0);  // of no row
    }
  }
  const std::set<std::int64_t> distinct(parts[0]->ids.begin(), parts[0]->ids.end());
  CHECK(marked[0] == 0 && marked[1] == distinct.size() && marked[2] > 0 && marked[2] <= parts[0]->ids.size() / 8 + 1);
  // Over sixty batches everybody had a turn.
  CHECK(static_cast<std::size_t>(std::count(any.begin(), any.end(), 1)) >= distinct.size() * 99 / 100);
}

TEST(sizes_that_make_no_sense_read_and_write_nothing_outside) {
  std::mt19937 random(9);
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max(),
                         kLeast = std::numeric_limits<std::int64_t>::min();
  constexpr int kMostId = std::numeric_limits<int>::max(), kLeastId = std::numeric_limits<int>::min();
  for (const std::int64_t length : {0, 3}) {
    Replica on(16, 4000, 600, 16);
    std::vector<std::unique_ptr<Part>> parts;
    parts.push_back(make_part(random, on, {{0, 4}, 6, 6, 5, length, 16}, 1, 4));
    for (const auto& [batch, first, last] : {std::tuple{kMost, kLeastId, kMostId}, {kLeast, 0, 4}, {6L, 5, -3}}) {
      parts[0]->ranges.front().begin = first;
      parts[0]->ranges.back().end = last;
      Launch launch(parts, batch, 6);
      run<emberline::Fp32Output>(launch, 1, 2);
      launch.packed_feature(0)[1] = kLeast;  // so many ids
      run<emberline::Fp32Output>(launch, 1, 2);
    }
  }
}

TEST(offsets_where_nothing_can_lie_are_a_feature_without_ids) {
  std::mt19937 random(11);
  for (const std::int64_t length : {0, 3}) {
    for (const int word : {0, 2}) {
      if (length == 0 && word == 2) continue;  // nobody asks for ranges there
      for (const std::int64_t offset : {std::int64_t{0}, std::int64_t{-16}, std::int64_t{131}, INT64_MAX, INT64_MIN}) {
        Replica on(16, 4000, 600, 16);
        std::vector<std::unique_ptr<Part>> parts;
        parts.push_back(make_part(random, on, {{0, 4}, 6, 6, 5, length, 16}, 1, 4));
        Launch launch(parts, 6, 6);
        launch.packed_feature(0)[word] = offset;
        run<emberline::Fp32Output>(launch, 1, 2);
        CHECK(launch.miss_count == 0);
        const Bytes& output = parts[0]->output;
        CHECK(std::all_of(output.data, output.data + output.size, [](std::uint8_t byte) { return byte == 0; }));
      }
    }
  }
}

TEST(rows_may_share_their_ids) {
  std::mt19937 random(12);
  const Shape shape{{0, 8}, 20, 24, 5, 3, 16};
  Replica on(32, 4000, 600, 16);
  std::vector<std::unique_ptr<Part>> parts;
  parts.push_back(make_part(random, on, shape, 3, 4));
  fill_differences(random, on, parts);
  for (emberline::PackedRange& range : parts[0]->ranges) range = parts[0]->ranges[random() % 20];
  Launch launch(parts, shape.batch, shape.rows);
  run<emberline::Fp32Output>(launch, 1, 2);
  Misses expected;
  CHECK(is_right<emberline::Fp32Output>(*parts[0], 0, shape, expected));
  std::sort(expected.begin(), expected.end());
  CHECK(launch.missed() == expected);
}

namespace {

// One id, of table 3 of 10, and where a search along a chain finds it.
struct OneId {
  explicit OneId(std::mt19937& random, std::int64_t entries) : on(16, 40, entries, 16) {
    for (std::uint32_t number = 0; number <= 9; ++number) {
      rows.push_back(random_row(random, {0, 4}, decoded.emplace_back()));
    }
  }

  void put(std::uint32_t number, std::uint32_t table = 3) {
    CHECK(on.put(table + number * 10, 5, rows[number], decoded[number]));
  }

  // The number of the difference whose row came, 0 for the base, -1 for a miss. length: as the header says it.
  int found(const std::vector<std::int64_t>& chain, std::int64_t length = -1) {
    on.chain = chain;
    std::vector<std::unique_ptr<Part>> parts;
    parts.push_back(std::make_unique<Part>(on, Format{0, 4}, 3u, 1, std::vector<std::int64_t>{5},
                                           std::vector<std::int64_t>{0, 1}, 16, 1));
    Launch launch(parts, 1, 1);
    launch.lookup.use_mask = 0;
    if (length != -1) launch.header[emberline::kChainLengthWord] = length;
    run<emberline::Fp32Output>(launch, 1, 1);
    const auto* uses = parts[0]->uses.data;
    const auto marked = std::count(uses, uses + parts[0]->uses.size, 1);
    if (launch.miss_count == 1) {
      CHECK(parts[0]->states.data[0] == 0 && marked == 0);
      return -1;
    }
    CHECK(launch.miss_count == 0 && parts[0]->states.data[0] == 1 && marked == 1);
    for (std::size_t number = 0; number < decoded.size(); ++number) {
      if (std::memcmp(decoded[number].data(), parts[0]->output.data, 16) == 0) return static_cast<int>(number);
    }
    return -2;
  }

  Replica on;
  std::vector<std::vector<float>> decoded;
  std::vector<std::vector<char>> rows;
};

}  // namespace

TEST(a_chain_is_searched_in_its_order_and_then_the_base) {
  std::mt19937 random(13);
  OneId id(random, 40);
  for (const std::uint32_t number : {0u, 1u, 2u}) id.put(number);
  id.put(4, 4);  // of another table
  CHECK(id.found({}) == 0);
  CHECK(id.found({1}) == 1);
  CHECK(id.found({2}) == 2);
  CHECK(id.found({1, 2}) == 1);
  CHECK(id.found({2, 1}) == 2);
  CHECK(id.found({3, 2, 1}) == 2);
  CHECK(id.found({3}) == 0);
  CHECK(id.found({4}) == 0);
  CHECK(id.found({4, 5, 6, 7, 8, 3, 9, 1}) == 1);
}

TEST(a_row_of_a_difference_alone_needs_its_chain) {
  std::mt19937 random(14);
  OneId id(random, 40);
  id.put(2);
  CHECK(id.found({}) == -1);
  CHECK(id.found({1}) == -1);
  CHECK(id.found({1, 2}) == 2);
}

TEST(an_entry_that_asks_the_host_ends_the_search) {
  std::mt19937 random(15);
  OneId id(random, 40);
  id.put(0);
  id.put(1);
  CHECK(id.on.put_ask_host(3 + 2 * 10, 5));
  CHECK(id.found({2, 1}) == -1);
  CHECK(id.found({2}) == -1);
  CHECK(id.found({1, 2}) == 1);
  CHECK(id.found({}) == 0);
}

TEST(a_chain_of_more_than_eight_is_one_of_eight) {
  std::mt19937 random(16);
  OneId id(random, 40);
  id.put(0);
  id.put(8);
  for (const std::int64_t length : {std::int64_t{8}, std::int64_t{9}, INT64_MAX}) {
    CHECK(id.found({1, 2, 3, 4, 5, 6, 7, 8}, length) == 8);
    CHECK(id.found({1, 2, 3, 4, 5, 6, 7, 9}, length) == 0);
  }
  CHECK(id.found({8}, 0) == 0);
  CHECK(id.found({8}, INT64_MIN) == 0);
  // Beyond its length a chain is not read; numbers that make no sense name no table.
  CHECK(id.found({1, 8}, 1) == 0);
  CHECK(id.found({INT64_MAX, -1, 1 << 20, 8}) == 8);
}

// The virtual table's own buckets may be full: its entry then stands in the second one, found all the same.
TEST(chains_over_full_buckets) {
  std::mt19937 random(17);
  for (int trial = 0; trial < 200; ++trial) {
    Replica on(16, 100, 4 + trial % 3, 16);
    const Shape shape{{0, 4}, 10, 10, 3, 0, 16};
    std::vector<std::unique_ptr<Part>> parts;
    parts.push_back(make_part(random, on, shape, 3, 4));
    fill_differences(random, on, parts);
    Launch launch(parts, 10, 10);
    run<emberline::Fp32Output>(launch, 1, 2);
    Misses expected;
    CHECK(is_right<emberline::Fp32Output>(*parts[0], 0, shape, expected));
    std::sort(expected.begin(), expected.end());
    CHECK(launch.missed() == expected);
  }
}

TEST(a_slot_beyond_the_slab_is_a_miss) {
  std::mt19937 random(10);
  Replica on(16, 8, 2, 16);
  std::vector<float> decoded;
  CHECK(on.put(1, 5, random_row(random, {0, 4}, decoded), decoded));
  std::vector<std::unique_ptr<Part>> parts;
  parts.push_back(std::make_unique<Part>(on, Format{0, 4}, 1u, 0, std::vector<std::int64_t>{5},
                                         std::vector<std::int64_t>{0, 1}, 16, 1, 1));
  for (std::int64_t word = 0; word < 16; ++word) {
    if (word % 8 >= 4 && emberline::word::slot(on.buckets()[word]) != 0) on.buckets()[word] += 8;  // slot 9 of 8
  }
  Launch launch(parts, 1, 1);
  run<emberline::Fp32Output>(launch, 1, 1);
  CHECK(launch.miss_count == 1 && parts[0]->states.data[0] == 0);
}

RUN_ALL_TESTS()
