// Lookups of a GPU that shares rows with others, against the maps of all their replicas, to the bit: each row from its
// own GPU or from the one whose part it is, marks of use where the row lies, misses for the rest.
#include <limits>
#include <tuple>

#include "check.h"
#include "gpus.h"
#include "lookup_gather.cuh"
#include "lookup_pool.cuh"

using namespace gpus;

namespace {

using emberline::OwnRows;
using emberline::RowsAcross;

template <class Where>
void gather(Launch& launch, std::size_t features, std::int64_t warps) {
  on_threads(static_cast<std::int64_t>(features) * warps, [&](std::int64_t number) {
    emberline::gather_share<emberline::Fp32Output, Where>(emberline::Tile(emberline::kWarp), launch.lookup,
                                                          number / warps, number % warps, warps);
  });
}

template <class Where>
void pool(Launch& launch, std::size_t features, std::int64_t warps) {
  for (std::size_t f = 0; f < features; ++f) {
    const auto number = static_cast<std::int64_t>(f);
    const int width = emberline::pool_width(emberline::feature_at(launch.lookup.features, launch.header, number));
    const std::int64_t threads = warps * emberline::kWarp;
    on_threads(threads / width,
               [&](std::int64_t tile) { emberline::pool_share<Where>(launch.lookup, number, tile * width, threads); });
  }
}

struct Shape {
  bool pooled;
  std::int64_t batch, rows, longest;
  std::int64_t use_mask = -1;
};

template <class Where>
void run(Launch& launch, const Shape& shape, std::size_t features, std::int64_t warps = 3) {
  launch.lookup.use_mask = shape.use_mask;
  shape.pooled ? pool<Where>(launch, features, warps) : gather<Where>(launch, features, warps);
}

// What a replica may say of an id, also nothing.
void put_anything(std::mt19937& random, Replica& on, Format format, std::uint32_t table, std::int64_t id) {
  std::vector<float> decoded;
  switch (random() % 16) {
    case 0: on.put_ask_host(table, id); return;
    case 1: on.put_beyond(table, id, 1 + random() % 3); return;
    case 2:
    case 3:
    case 4:
    case 5:
    case 6:
    case 7:
    case 8:
    case 9: break;
    default: return;
  }
  const std::vector<char> row = random_row(random, format, decoded);
  on.put(table, id, row, decoded);
}

// Replicas of other sizes on each GPU, with other rows for the same ids, and entries of three differences.
Cache random_cache(std::mt19937& random, const Gpus& gpus, Format format, const std::vector<std::uint32_t>& tables,
                   const std::vector<std::int64_t>& ids) {
  Cache cache{format, {}, nullptr};
  const std::int64_t row_bytes = emberline::encoded_bytes(format.type, format.dim),
                     align = std::int64_t{4} << random() % 4;
  std::vector<float> decoded;
  for (std::size_t gpu = 0; gpu < gpus.count; ++gpu) {
    cache.on.push_back(nullptr);
    if (gpu != gpus.own && random() % 6 == 0) continue;
    const std::int64_t slots = 1 + random() % (gpu == gpus.own ? 80 : 1000), buckets = 2 + random() % 300;
    Replica& on = *(cache.on.back() = std::make_unique<Replica>(row_bytes, slots, buckets, align));
    for (const std::uint32_t table : tables) {
      for (const std::int64_t id : ids) {
        if (gpu == gpus.own && random() % 4 != 0) continue;
        put_anything(random, on, format, table, id);
        for (std::uint32_t number = 1; number <= 3; ++number) {
          if (random() % 6 == 0) put_anything(random, on, format, table + number * on.base_tables, id);
        }
      }
    }
  }
  const auto room = static_cast<std::int64_t>(tables.size() * ids.size()) + 1;
  cache.decoy = std::make_unique<Replica>(row_bytes, room, room, align);
  for (const std::uint32_t table : tables) {
    for (const std::int64_t id : ids) {
      const std::vector<char> row = random_row(random, format, decoded);
      cache.decoy->put(table, id, row, decoded);
    }
  }
  return cache;
}

void add_random_part(std::mt19937& random, Gpus& gpus, Cache& cache, std::uint32_t table, const Shape& shape) {
  constexpr std::int64_t kPoolings[] = {emberline::kPoolSum, emberline::kPoolMean, emberline::kPoolWeighted};
  const std::vector<std::int64_t> offsets = random_offsets(random, shape.batch, shape.longest);
  const std::vector<std::int64_t> ids = random_ids(random, offsets.back());
  const auto of = static_cast<std::int64_t>(shape.pooled ? kPoolings[random() % 3] : random() % 5);
  const bool by_id = !shape.pooled && of == 0;
  const std::int64_t rows = shape.pooled ? shape.rows : by_id ? offsets.back() : shape.rows * of;
  const bool has_marks = random() % 8 != 0;
  gpus.add_part(cache, table, of, ids, offsets, rows * cache.format.dim * 4, rows, by_id ? rows : kNoBound, has_marks);
  if (random() % 8 == 0) return;
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < ids.size(); ++i) gpus.parts.back()->weights.push_back(normal(random));
}

// Two to five GPUs, two caches, three features.
struct World {
  World(std::mt19937& random, const Shape& shape, Format format) : gpus(2 + random() % 4, 0) {
    gpus.own = random() % gpus.count;
    constexpr std::int64_t kChains[][2] = {{1, 2}, {2, 1}, {1, 3}, {3, 2}, {2, 3}};
    for (std::size_t gpu = 0; gpu < gpus.count; ++gpu) {
      const auto& chain = kChains[random() % 5];
      gpus.chains[gpu].assign(chain, chain + random() % 3);
      gpus.answers[gpu] = gpu == gpus.own || random() % 6 != 0;
    }
    const Format other{static_cast<int>(random() % 5), static_cast<std::uint32_t>(1 + random() % 40)};
    std::vector<std::int64_t> known;
    for (std::int64_t id = -300; id < 300; id += 1 + static_cast<std::int64_t>(random() % 4)) known.push_back(id);
    known.insert(known.end(), kOddIds.begin(), kOddIds.end());
    std::shuffle(known.begin(), known.end(), random);
    first = random_cache(random, gpus, format, {3, 4}, known);
    second = random_cache(random, gpus, other, {6}, known);
    add_random_part(random, gpus, first, 3, shape);
    add_random_part(random, gpus, second, 6, shape);
    add_random_part(random, gpus, first, 4, shape);
  }

  Launch launch(const Shape& shape) {
    return Launch(gpus.parts, shape.batch, shape.rows, kMisses, gpus.packed_chains());
  }

  Gpus gpus;
  Cache first, second;
};

void expect_rows(const Gpus& gpus, std::size_t f, const Launch& launch, const Shape& shape, Expected& expected,
                 std::vector<float>& output, std::vector<std::uint8_t>& states) {
  const Part& part = *gpus.parts[f];
  const auto put = [&](std::int64_t row, std::int64_t id_number) {
    const float* const found = expected.look_up(launch.lookup, f, id_number, row);
    if (found == nullptr) return;
    states[static_cast<std::size_t>(row)] = 1;
    std::copy_n(found, part.format.dim, output.begin() + row * part.format.dim);
  };
  if (part.shape == 0) {
    for (std::int64_t i = 0; shape.batch > 0 && i < static_cast<std::int64_t>(part.ids.size()); ++i) put(i, i);
    return;
  }
  for (std::int64_t row = 0; row < std::min(shape.batch, shape.rows); ++row) {
    for (std::int64_t at = 0; at < std::min(part.end(row) - part.begin(row), part.shape); ++at) {
      put(row * part.shape + at, part.begin(row) + at);
    }
  }
}

void expect_bags(const Gpus& gpus, std::size_t f, const Launch& launch, const Shape& shape, Expected& expected,
                 std::vector<float>& output, std::vector<std::uint8_t>& states) {
  const Part& part = *gpus.parts[f];
  for (std::int64_t bag = 0; bag < std::min(shape.batch, shape.rows); ++bag) {
    std::vector<const char*> rows;
    std::vector<float> weights;
    for (std::int64_t i = part.begin(bag); i < part.end(bag); ++i) {
      rows.push_back(reinterpret_cast<const char*>(expected.look_up(launch.lookup, f, i, bag)));
      weights.push_back(part.weights.empty() ? 1.0f : part.weights[static_cast<std::size_t>(i)]);
      if (rows.back() == nullptr) states[static_cast<std::size_t>(bag)] = 1;
    }
    emberline::pool_rows({emberline::RowType::kFp32, part.format.dim}, rows.data(), weights.data(), rows.size(),
                         static_cast<emberline::Pooling>(part.shape), output.data() + bag * part.format.dim);
  }
}

// Output, states, misses and marks of a launch. across: whether it looked on other GPUs.
bool is_right(const Gpus& gpus, const Launch& launch, const Shape& shape, bool across,
              std::int64_t* elsewhere = nullptr) {
  Expected expected(gpus, across);
  bool right = true;
  for (std::size_t f = 0; f < gpus.parts.size(); ++f) {
    const Part& part = *gpus.parts[f];
    std::vector<float> output(part.output.size / 4, 0.0f);
    std::vector<std::uint8_t> states(part.states.size, 0);
    (shape.pooled ? expect_bags : expect_rows)(gpus, f, launch, shape, expected, output, states);
    right = right && same(reinterpret_cast<const float*>(part.output.data), output.data(), output.size());
    right = right && std::equal(states.begin(), states.end(), part.states.data);
  }
  if (elsewhere != nullptr) *elsewhere += expected.found_elsewhere;
  return right && expected.misses_are(launch) && expected.marks_are_right() && decoys_are_unmarked(gpus);
}

// Features that leave no marks of use on their own GPU either.
void without_marks(const Gpus& gpus, Launch& launch) {
  for (std::size_t f = 0; f < gpus.parts.size(); ++f) {
    if (!gpus.marked[f]) launch.features[f * emberline::kFeatureWords + 8] = 0;
  }
}

Shape random_shape(std::mt19937& random, bool pooled) {
  constexpr std::int64_t kMasks[] = {-1, 0, 0, 3};
  const auto batch = static_cast<std::int64_t>(random() % 24), rows = std::int64_t{20};
  return {pooled, batch, rows, static_cast<std::int64_t>(random() % 12), kMasks[random() % 4]};
}

void look_up_at_random(std::uint32_t seed, bool pooled) {
  std::mt19937 random(seed);
  std::int64_t elsewhere = 0;
  for (int trial = 0; trial < 250; ++trial) {
    const Shape shape = random_shape(random, pooled);
    World world(random, shape, {static_cast<int>(random() % 5), static_cast<std::uint32_t>(1 + random() % 70)});
    Launch launch = world.launch(shape);
    without_marks(world.gpus, launch);
    run<RowsAcross>(launch, shape, world.gpus.parts.size(), 1 + random() % 5);
    CHECK(is_right(world.gpus, launch, shape, true, &elsewhere));
  }
  std::printf("  %lld rows of other GPUs\n", static_cast<long long>(elsewhere));
  CHECK(elsewhere > 1000);
}

}  // namespace

TEST(random_rows_come_from_their_gpus) { look_up_at_random(1, false); }
TEST(random_bags_have_rows_of_several_gpus) { look_up_at_random(2, true); }

TEST(rows_of_every_type_and_width_come_across) {
  std::mt19937 random(3);
  std::int64_t elsewhere = 0;
  for (const int type : {0, 1, 2, 3, 4}) {
    for (const std::uint32_t dim :
         {1u, 2u, 3u, 4u, 7u, 8u, 15u, 16u, 17u, 31u, 32u, 33u, 64u, 65u, 127u, 128u, 129u, 256u, 511u, 513u, 1024u}) {
      for (const bool pooled : {false, true}) {
        const Shape shape{pooled, 6, 7, pooled ? 40 : 6, 0};
        World world(random, shape, {type, dim});
        Launch launch = world.launch(shape);
        without_marks(world.gpus, launch);
        run<RowsAcross>(launch, shape, world.gpus.parts.size());
        CHECK(is_right(world.gpus, launch, shape, true, &elsewhere));
      }
    }
  }
  CHECK(elsewhere > 1000);
}

TEST(without_other_gpus_it_is_the_plain_lookup_to_the_bit) {
  std::mt19937 random(4);
  for (int trial = 0; trial < 200; ++trial) {
    const Shape shape = random_shape(random, trial % 2 == 0);
    World world(random, shape, {static_cast<int>(random() % 5), static_cast<std::uint32_t>(1 + random() % 70)});
    Gpus& gpus = world.gpus;
    const std::size_t features = gpus.parts.size();
    // The kernels of one GPU look at nothing of the others.
    Launch plain = world.launch(shape);
    without_marks(gpus, plain);
    run<OwnRows>(plain, shape, features);
    CHECK(is_right(gpus, plain, shape, false));
    std::vector<std::vector<std::uint8_t>> bytes;
    for (const auto& part : gpus.parts) {
      for (const Bytes* each : {&part->output, &part->states, &part->uses}) {
        bytes.emplace_back(each->data, each->data + each->size);
      }
    }
    enum { kNoTable, kNoHeader, kNeither, kOneGpu, kNone };
    for (int without = kNoTable; without < kNone; ++without) {
      gpus.clear();
      Launch launch = world.launch(shape);
      without_marks(gpus, launch);
      for (std::size_t f = 0; f < features; ++f) {
        std::int64_t* const words = launch.features.data() + f * emberline::kFeatureWords;
        if (without == kNoTable || without == kNeither) words[11] = words[12] = 0;
        if (without == kOneGpu) words[12] = words[12] >> 32 << 32 | (trial % 4 < 2);
      }
      if (without == kNoHeader || without == kNeither) launch.header[emberline::kPeerChainsWord] = 0;
      run<RowsAcross>(launch, shape, features);
      std::size_t at = 0;
      for (const auto& part : gpus.parts) {
        for (const Bytes* each : {&part->output, &part->states, &part->uses}) {
          CHECK(std::equal(bytes[at].begin(), bytes[at].end(), each->data));
          ++at;
        }
      }
      CHECK(launch.missed() == plain.missed() && launch.miss_count == plain.miss_count);
      CHECK(is_right(gpus, launch, shape, false));
    }
  }
}

namespace {

// One id of table 3, of the part of GPU 2 of three; GPU 0 looks. A row says by its values which it is.
struct OneId {
  OneId() : gpus(3, 0) {
    while (gpus.part_of(3, id) != 2) ++id;
    for (std::size_t gpu = 0; gpu < 3; ++gpu) cache.on.push_back(std::make_unique<Replica>(16, 20 + gpu, 40, 16));
    cache.decoy = std::make_unique<Replica>(16, 20, 40, 16);
  }

  Replica& on(std::size_t gpu) { return *cache.on[gpu]; }
  void put(std::size_t gpu, float value, std::uint32_t number = 0) { put(on(gpu), value, number); }
  void put(Replica& to, float value, std::uint32_t number = 0) {
    const std::vector<float> values(4, value);
    std::vector<char> row(16);
    std::memcpy(row.data(), values.data(), 16);
    CHECK(to.put(3 + number * to.base_tables, id, row, values));
  }

  struct Answer {
    int value, gpu;  // -1: a miss; no mark
    bool operator==(const Answer&) const = default;
  };
  static constexpr Answer kMiss{-1, -1};

  // change: of the launch, before it runs.
  template <class Change>
  Answer found(const Change& change) {
    gpus.parts.clear(), gpus.peers.clear(), gpus.caches.clear(), gpus.marked.clear();
    gpus.add_part(cache, 3, 1, {id}, {0, 1}, 16, 1, kNoBound);
    Launch launch(gpus.parts, 1, 1, 4, gpus.packed_chains());
    launch.lookup.use_mask = 0;
    change(launch);
    gather<RowsAcross>(launch, 1, 1);
    Answer answer{-1, -1};
    std::int64_t marks = 0;
    for (std::size_t gpu = 0; gpu < 3; ++gpu) {
      const Bytes* const uses = gpus.uses(0, gpu);
      const auto here = uses == nullptr ? 0 : std::count(uses->data, uses->data + uses->size, 1);
      if (here > 0) answer.gpu = static_cast<int>(gpu);
      marks += here;
    }
    const bool hit = gpus.parts[0]->states.data[0] == 1;
    CHECK(marks == (hit ? 1 : 0) && launch.miss_count == (hit ? 0 : 1) && decoys_are_unmarked(gpus));
    float value;
    std::memcpy(&value, gpus.parts[0]->output.data, 4);
    if (hit) answer.value = static_cast<int>(value);
    return answer;
  }
  Answer found() {
    return found([](Launch&) {});
  }

  std::int64_t id = 100;
  Gpus gpus;
  Cache cache{{emberline::kRowFp32, 4}, {}, nullptr};
};

using Answer = OneId::Answer;

}  // namespace

TEST(a_row_of_the_own_gpu_comes_before_that_of_its_part) {
  OneId one;
  CHECK(one.found() == OneId::kMiss);
  one.put(2, 20);
  CHECK((one.found() == Answer{20, 2}));
  one.put(0, 10);
  CHECK((one.found() == Answer{10, 0}));
}

TEST(a_gpu_whose_part_it_is_not_is_not_asked) {
  OneId one;
  one.put(1, 11);
  one.put(*one.cache.decoy, 13);
  CHECK(one.found() == OneId::kMiss);
  // Nor the own one a second time.
  while (one.gpus.part_of(3, one.id) != 0) ++one.id;
  one.put(*one.cache.decoy, 14);
  one.put(1, 15);
  one.put(2, 16);
  CHECK(one.found() == OneId::kMiss);
}

TEST(an_own_entry_that_asks_the_host_is_a_miss_whoever_has_the_row) {
  OneId one;
  one.put(2, 20);
  CHECK(one.on(0).put_ask_host(3 + 10, one.id));
  CHECK((one.found() == Answer{20, 2}));  // of a difference that the batch has not
  one.gpus.chains[0] = {1};
  CHECK(one.found() == OneId::kMiss);
}

TEST(an_own_slot_beyond_the_slab_is_a_miss_whoever_has_the_row) {
  OneId one;
  one.put(2, 20);
  CHECK(one.on(0).put_beyond(3, one.id, 1));
  CHECK(one.found() == OneId::kMiss);
}

TEST(another_gpus_entry_that_asks_the_host_is_a_miss) {
  OneId one;
  one.put(2, 20);
  CHECK(one.on(2).put_ask_host(3 + 10, one.id));
  CHECK((one.found() == Answer{20, 2}));
  one.gpus.chains[2] = {1};
  CHECK(one.found() == OneId::kMiss);
}

// Slots are bounded by the slab in which they lie, not by the own one, which has less here, then more.
TEST(another_gpus_slot_beyond_its_slab_is_a_miss) {
  for (const std::int64_t own_slots : {2, 60}) {
    OneId beyond;
    beyond.cache.on[0] = std::make_unique<Replica>(16, own_slots, 40, 16);
    CHECK(beyond.on(2).put_beyond(3, beyond.id, 1));
    CHECK(beyond.found() == OneId::kMiss);
    OneId last;
    last.cache.on[0] = std::make_unique<Replica>(16, own_slots, 40, 16);
    const std::int64_t asked = last.id;
    for (last.id = 1000; last.id < 1000 + last.on(2).slots - 1; ++last.id) last.put(2, 1);
    last.id = asked;
    last.put(2, 22);
    CHECK((last.found() == Answer{22, 2}));
  }
}

TEST(each_gpu_is_searched_along_its_own_chain) {
  OneId one;
  for (const std::uint32_t number : {1u, 2u}) one.put(2, 20.0f + static_cast<float>(number), number);
  one.gpus.chains[0] = {1, 2};
  one.gpus.chains[1] = {2, 1};
  CHECK(one.found() == OneId::kMiss);
  for (const auto& [chain, value] :
       {std::tuple{std::vector<std::int64_t>{1}, 21}, {{2}, 22}, {{2, 1}, 22}, {{3, 1, 2}, 21}}) {
    one.gpus.chains[2] = chain;
    CHECK((one.found() == Answer{value, 2}));
  }
  one.put(2, 20);
  one.gpus.chains[2] = {3};
  CHECK((one.found() == Answer{20, 2}));
  one.gpus.chains[2] = {};
  CHECK((one.found() == Answer{20, 2}));
}

TEST(a_gpu_that_does_not_answer_or_has_nothing_is_not_asked) {
  OneId one;
  one.put(2, 20);
  one.gpus.answers[1] = false;
  CHECK((one.found() == Answer{20, 2}));
  one.gpus.answers[2] = false;
  CHECK(one.found() == OneId::kMiss);
  one.gpus.answers[2] = true;
  one.cache.on[1] = nullptr;
  CHECK((one.found() == Answer{20, 2}));
  one.cache.on[2] = nullptr;
  CHECK(one.found() == OneId::kMiss);
}

TEST(without_a_mask_nobody_is_marked) {
  OneId one;
  one.put(2, 20);
  const auto unmarked = [&](Launch& launch) {
    launch.lookup.use_mask = -1;
    gather<RowsAcross>(launch, 1, 1);
    const Bytes& uses = *one.gpus.uses(0, 2);
    CHECK(launch.miss_count == 0 &&
          std::count(uses.data, uses.data + uses.size, 0) == static_cast<std::ptrdiff_t>(uses.size));
    launch.lookup.use_mask = 0;
  };
  CHECK((one.found(unmarked) == Answer{20, 2}));
}

TEST(chains_that_make_no_sense_read_nothing_outside) {
  OneId one;
  one.put(2, 20);
  one.put(2, 28, 8);
  one.gpus.chains[2] = {1, 2, 3, 4, 5, 6, 7, 8};
  const auto with_length = [&](std::int64_t length) {
    return one.found([&](Launch& launch) {
      const std::int64_t at = launch.header[emberline::kPeerChainsWord];
      auto* const chains = reinterpret_cast<std::int64_t*>(launch.packed_batch->data + at);
      chains[2 * emberline::kPeerChainWords] = length;
    });
  };
  for (const std::int64_t length : {std::int64_t{8}, std::int64_t{9}, INT64_MAX})
    CHECK((with_length(length) == Answer{28, 2}));
  CHECK((with_length(7) == Answer{20, 2}));
  for (const std::int64_t length : {std::int64_t{-1}, std::int64_t{-2}, INT64_MIN})
    CHECK(with_length(length) == OneId::kMiss);
  one.gpus.chains[2] = {INT64_MAX, -1, 1 << 20, 8};
  CHECK((one.found() == Answer{28, 2}));
}

TEST(chains_where_nothing_can_lie_are_none) {
  OneId one;
  one.put(2, 20);
  for (const std::int64_t offset : {std::int64_t{0}, std::int64_t{-16}, std::int64_t{131}, INT64_MIN, INT64_MAX}) {
    CHECK(one.found([&](Launch& launch) { launch.header[emberline::kPeerChainsWord] = offset; }) == OneId::kMiss);
  }
}

RUN_ALL_TESTS()
