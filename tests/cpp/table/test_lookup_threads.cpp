// One lookup on several threads: the same bits, the same misses, the same counts as on one; beside a writer, no torn
// row.
#include <algorithm>
#include <atomic>
#include <random>
#include <stdexcept>
#include <thread>

#include "every_isa.h"
#include "rows.h"
#include "table/lookup.h"
#include "table/table.h"

using namespace emberline;

namespace {

constexpr std::size_t kBatch = 700;

struct Feature {
  std::vector<std::int64_t> values, offsets{0};
  std::vector<float> weights, output;
  std::vector<std::uint8_t> mask;
};

// Ids below 3000; a tenth of them is not in the tables.
std::vector<Feature> make_features(const std::vector<LookupFeature>& plan, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Feature> features(plan.size());
  for (std::size_t f = 0; f < plan.size(); ++f) {
    Feature& feature = features[f];
    for (std::size_t b = 0; b < kBatch; ++b) {
      const std::size_t n = f == 1 ? 1 : f == 4 && b == 9 ? 5000 : random() % 25;
      for (std::size_t i = 0; i < n; ++i) feature.values.push_back(random() % 3000);
      feature.offsets.push_back(static_cast<std::int64_t>(feature.values.size()));
    }
    for (std::size_t i = 0; i < feature.values.size(); ++i)
      feature.weights.push_back(static_cast<float>(random() % 9) - 4);
    feature.output.assign(kBatch * kDim * std::max<std::size_t>(1, plan[f].length), -7);
    feature.mask.assign(kBatch * plan[f].length, 9);
  }
  return features;
}

struct Answer {
  std::vector<Feature> features;
  std::vector<std::vector<std::int64_t>> missing;
  std::vector<LookupTotals> totals;
};

Answer look_up(Lookup& lookup, std::size_t threads) {
  Answer answer{make_features(lookup.features(), 3), {}, {}};
  std::vector<LookupInput> inputs;
  for (Feature& feature : answer.features) {
    inputs.push_back({feature.values.data(), feature.values.size(), feature.offsets.data(), feature.output.data(),
                      feature.mask.data(), feature.weights.data()});
  }
  lookup.begin(kBatch, inputs, 0, threads);
  for (std::size_t t = 0; t < lookup.table_count(); ++t) {
    const std::vector<std::int64_t> ids = lookup.missing(t);
    std::vector<float> rows;
    std::vector<std::uint8_t> states;
    for (const std::int64_t id : ids) {
      const std::vector<float> row = make_row(id, 5);
      rows.insert(rows.end(), row.begin(), row.end());
      states.push_back(static_cast<std::uint8_t>(id % 3));
    }
    lookup.supply(t, rows.data(), states.data());
    answer.missing.push_back(ids);
    std::sort(answer.missing.back().begin(), answer.missing.back().end());
    CHECK(std::adjacent_find(answer.missing.back().begin(), answer.missing.back().end()) ==
          answer.missing.back().end());
  }
  lookup.finish();
  answer.totals = lookup.table_totals();
  return answer;
}

std::vector<LookupFeature> plan() {
  return {{0, Pooling::kSum, 0},
          {1, Pooling::kMean, 0},
          {0, Pooling::kNone, 7},
          {1, Pooling::kWeighted, 0},
          {0, Pooling::kMean, 0}};
}

}  // namespace

TEST(threads_change_nothing) {
  Table first(kDim, 0, 0), second(kDim, 0, 0);
  for (std::int64_t id = 0; id < 3000; ++id) {
    if (id % 10 != 0) first.insert_or_assign(&id, 1, make_row(id, 1).data(), nullptr);
    if (id % 10 != 5) second.insert_or_assign(&id, 1, make_row(id, 2).data(), nullptr);
  }
  Lookup lookup({&first, &second}, plan());
  const Answer alone = look_up(lookup, 1);
  for (const std::size_t threads : {2u, 3u, 8u, 64u, 1u}) {
    const Answer shared = look_up(lookup, threads);
    CHECK(shared.missing == alone.missing);
    for (std::size_t f = 0; f < alone.features.size(); ++f) {
      CHECK(shared.features[f].output == alone.features[f].output);
      CHECK(shared.features[f].mask == alone.features[f].mask);
    }
    for (std::size_t t = 0; t < 2; ++t) {
      const LookupTotals &a = shared.totals[t], &b = alone.totals[t];
      CHECK(a.dram == b.dram && a.supplied == b.supplied && a.absent == b.absent && a.unresolved == b.unresolved);
      CHECK(a.dram > 0 && a.supplied > 0 && a.absent > 0 && a.unresolved > 0 && a.overlay == 0);
    }
  }
  CHECK_THROWS(look_up(lookup, 0), std::invalid_argument);
  CHECK_THROWS(look_up(lookup, 65), std::invalid_argument);
}

TEST(find_on_threads_gives_the_same_rows) {
  Table table(kDim, 0, 0);
  std::vector<std::int64_t> ids;
  for (std::int64_t id = 0; id < 20000; ++id) {
    ids.push_back(id);
    if (id % 3 != 0) table.insert_or_assign(&id, 1, make_row(id, 1).data(), nullptr);
  }
  std::vector<float> a(ids.size() * kDim), b(a);
  std::vector<std::uint8_t> here(ids.size()), there(ids.size());
  const std::size_t hits = table.find(ids.data(), ids.size(), a.data(), here.data());
  CHECK(hits == 13333);
  CHECK(table.find(ids.data(), ids.size(), b.data(), there.data(), 7) == hits);
  CHECK(a == b && here == there);
  CHECK_THROWS(table.find(ids.data(), 1, b.data(), there.data(), 0), std::invalid_argument);
}

TEST(threads_beside_a_writer_see_whole_rows) {
  Table table(kDim, 0, 0);
  constexpr std::int64_t kIds = 5000;
  for (std::int64_t id = 0; id < kIds; ++id) table.insert_or_assign(&id, 1, make_row(id, 0).data(), nullptr);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int generation = 1; !stop; ++generation) {
      for (std::int64_t id = generation % 7; id < kIds; id += 7) {
        table.insert_or_assign(&id, 1, make_row(id, generation % 1000).data(), nullptr);
      }
    }
  });
  Lookup lookup({&table}, {{0, Pooling::kSum, 0}});
  std::vector<std::int64_t> ids(3 * kIds), offsets{0};
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<std::int64_t>(i * 7919 % kIds);
    offsets.push_back(static_cast<std::int64_t>(i + 1));
  }
  std::vector<float> out(ids.size() * kDim);
  for (int round = 0; round < 20; ++round) {
    CHECK(lookup.begin(ids.size(), {{ids.data(), ids.size(), offsets.data(), out.data(), nullptr}}, 0, 3) == 0);
    lookup.finish();
    int torn = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) torn += generation_of(out.data() + i * kDim, ids[i]) < 0;
    CHECK(torn == 0);
  }
  stop = true;
  writer.join();
}

RUN_ALL_TESTS_ON_EVERY_ISA()
