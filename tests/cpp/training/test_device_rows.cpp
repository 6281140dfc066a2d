// Rows of a batch for a GPU: each id's place has its row, gradients are summed by row in one order, and tables step the
// rows that the GPU does not keep.
#include "training/device_rows.h"

#include <cmath>
#include <map>
#include <memory>

#include "check.h"
#include "rows/isa.h"
#include "tables.h"

using namespace emberline;
using namespace emberline::tests;

namespace {

constexpr std::size_t kBatch = 300;
constexpr std::uint32_t kDim = 4, kLength = 3;

// Two tables of one dim in a group, and one of another; bags, and a sequence that is filled up.
struct World {
  World() {
    for (const std::uint32_t dim : {kDim, kDim, kDim + 2}) {
      owned.push_back(std::make_unique<TrainingTable>(options({.dim = dim, .seed = owned.size() + 1})));
      tables.push_back(owned.back().get());
    }
    features = {{0, Pooling::kSum, 0},
                {1, Pooling::kMean, 0},
                {0, Pooling::kNone, kLength},
                {1, Pooling::kWeighted, 0},
                {2, Pooling::kSum, 0}};
    std::uint64_t seed = 7;
    for (std::size_t f = 0; f < features.size(); ++f) {
      offsets[f].push_back(0);
      for (std::size_t bag = 0; bag < kBatch; ++bag) {
        for (std::uint64_t n = mix(++seed) % 6; n > 0; --n) {
          // Half of the ids are one, so that sums of many terms occur.
          values[f].push_back(mix(++seed) % 2 == 0 ? 3 : static_cast<std::int64_t>(mix(++seed) % 90));
          weights[f].push_back(static_cast<float>(mix(++seed) % 100) / 32.0f);
        }
        offsets[f].push_back(static_cast<std::int64_t>(values[f].size()));
      }
    }
  }

  std::vector<FeatureIds> ids() const {
    std::vector<FeatureIds> given;
    for (std::size_t f = 0; f < features.size(); ++f) {
      given.push_back({values[f].data(), offsets[f].data(), weights[f].data(), values[f].size()});
    }
    return given;
  }

  std::vector<std::unique_ptr<TrainingTable>> owned;
  std::vector<TrainingTable*> tables;
  std::vector<FeatureLookup> features;
  std::vector<std::int64_t> values[5], offsets[5];
  std::vector<float> weights[5];
};

}  // namespace

TEST(places_have_the_rows_of_their_ids) {
  World world;
  BatchLookup lookup(world.tables, world.features);
  lookup.find(world.ids(), kBatch, {true, 2});
  KeptIds kept;
  for (std::int64_t id = 0; id < 30; ++id) kept.put(id, static_cast<std::uint32_t>(100 + id));
  for (std::int64_t id = 500; id < 510; ++id) kept.put(id, static_cast<std::uint32_t>(id));  // not in the batch
  kept.erase(5);
  DeviceRows rows(lookup, {0, 0, 1}, {&kept, nullptr, nullptr}, 2);
  CHECK(rows.groups() == 2);
  CHECK(rows.kept(0).size() == 29);
  CHECK(rows.kept(1).empty());
  std::vector<float> narrow(rows.others(0) * kDim), wide(rows.others(1) * (kDim + 2));
  rows.write({narrow.data(), wide.data()}, 2);
  const std::size_t first = rows.kept(0).size();
  const auto is_row = [&](std::int32_t place, TrainingTable& table, std::int64_t id) {
    const auto at = static_cast<std::size_t>(place);
    if (at < first) return &table == world.tables[0] && rows.kept(0)[at] == 100 + id && id < 30 && id != 5;
    const std::vector<float> row = look(table, {id}, false);
    return std::equal(row.begin(), row.end(), narrow.begin() + static_cast<std::ptrdiff_t>((at - first) * kDim));
  };
  for (const std::size_t threads : {1, 4}) {
    const std::vector<std::uint32_t> side_by_side{1, 3};
    std::vector<std::int32_t> places(rows.ids(side_by_side)), starts(2 * kBatch + 1);
    std::vector<float> weights(places.size());
    rows.write_bags(side_by_side, places.data(), starts.data(), nullptr, threads);
    std::size_t wrong = 0;
    for (std::size_t bag = 0; bag < kBatch; ++bag) {
      for (std::size_t side = 0; side < 2; ++side) {
        const std::uint32_t f = side_by_side[side];
        auto at = static_cast<std::size_t>(starts[2 * bag + side]);
        for (auto i = world.offsets[f][bag]; i < world.offsets[f][bag + 1]; ++i) {
          wrong += !is_row(places[at++], *world.tables[1], world.values[f][static_cast<std::size_t>(i)]);
        }
        wrong += at != static_cast<std::size_t>(starts[2 * bag + side + 1]);
      }
    }
    CHECK(wrong == 0);
  }
  std::vector<std::int32_t> sequence(kBatch * kLength);
  rows.write_sequence(2, sequence.data());
  std::size_t wrong = 0;
  for (std::size_t bag = 0; bag < kBatch; ++bag) {
    const auto begin = static_cast<std::size_t>(world.offsets[2][bag]);
    const auto n = std::min<std::size_t>(kLength, static_cast<std::size_t>(world.offsets[2][bag + 1]) - begin);
    for (std::size_t i = 0; i < kLength; ++i) {
      const std::int32_t place = sequence[bag * kLength + i];
      wrong += i < n ? !is_row(place, *world.tables[0], world.values[2][begin + i])
                     : place != static_cast<std::int32_t>(first + rows.others(0));
    }
  }
  CHECK(wrong == 0);
}

TEST(gradients_are_summed_by_row_whatever_is_kept) {
  World world;
  std::map<std::pair<std::size_t, std::int64_t>, std::vector<float>> found[2];
  for (const bool keeps : {false, true}) {
    BatchLookup lookup(world.tables, world.features);
    lookup.find(world.ids(), kBatch, {!keeps, 2});
    KeptIds kept;
    for (std::int64_t id = 0; keeps && id < 90; id += 2) kept.put(id, static_cast<std::uint32_t>(id));
    DeviceRows rows(lookup, {0, 0, 1}, {&kept, nullptr, nullptr}, 2);
    // The gradients: bags of 1 and 3 side by side, those of 0, then the places of the sequence; of one value each.
    std::vector<float> grads(kBatch * (3 + kLength));
    for (std::size_t i = 0; i < grads.size(); ++i) grads[i] = static_cast<float>(mix(i) % 1000) / 501.0f - 1.0f;
    const std::vector<GradientRows> from{
        {2 * kBatch, 1, true}, {0, 2, true}, {3 * kBatch, kLength, true}, {1, 2, true}, {0, 0, false}};
    const DeviceSums sums = rows.sums(0, from, 2);
    CHECK(sums.rows.size() == sums.factors.size());
    CHECK(sums.levels.size() >= 2);
    std::vector<float> terms(sums.rows.size());
    for (std::size_t i = 0; i < terms.size(); ++i) {
      terms[i] = grads[static_cast<std::size_t>(sums.rows[i])] * sums.factors[i];
    }
    for (const std::vector<std::int32_t>& level : sums.levels) {
      CHECK(static_cast<std::size_t>(level.back()) == terms.size());
      std::vector<float> next(level.size() - 1);
      for (std::size_t i = 0; i + 1 < level.size(); ++i) {
        CHECK(level[i + 1] - level[i] <= 32);
        for (auto at = level[i]; at < level[i + 1]; ++at) next[i] += terms[static_cast<std::size_t>(at)];
      }
      terms = std::move(next);
    }
    CHECK(terms.size() == rows.kept(0).size() + rows.others(0));
    // By table and id, as they are and as they should be.
    std::map<std::pair<std::size_t, std::int64_t>, double> expected;
    for (const std::size_t f : {0, 1, 2, 3}) {
      for (std::size_t bag = 0; bag < kBatch; ++bag) {
        const auto begin = static_cast<std::size_t>(world.offsets[f][bag]);
        const std::size_t n = lookup.used(static_cast<std::uint32_t>(f), bag);
        for (std::size_t i = 0; i < n; ++i) {
          const std::size_t row = from[f].first + bag * from[f].stride + (f == 2 ? i : 0);
          const double factor = f == 1 ? 1.0 / static_cast<double>(n) : f == 3 ? world.weights[f][begin + i] : 1.0;
          expected[{world.features[f].table, world.values[f][begin + i]}] += grads[row] * factor;
        }
      }
    }
    std::vector<std::int32_t> places(rows.ids({1}));
    std::vector<std::int32_t> starts(kBatch + 1);
    for (const std::uint32_t f : {0u, 1u}) {
      places.resize(rows.ids({f}));
      rows.write_bags({f}, places.data(), starts.data(), nullptr, 1);
      for (std::size_t i = 0; i < places.size(); ++i) {
        const std::pair<std::size_t, std::int64_t> key{world.features[f].table, world.values[f][i]};
        const float sum = terms[static_cast<std::size_t>(places[i])];
        CHECK(std::abs(sum - expected[key]) < 1e-3);
        found[keeps][key] = {sum};
      }
    }
    const std::vector<std::uint8_t> used = rows.is_used(0, {1, 0, 0, 0, 0});
    std::size_t wrong = 0;
    for (const std::int32_t place : places) wrong += used[static_cast<std::size_t>(place)] != 0;  // of table 1
    CHECK(wrong == 0);
  }
  CHECK(found[0] == found[1]);  // to the bit
}

TEST(tables_step_the_rows_that_are_not_kept) {
  World world, plain;
  KeptIds kept;
  for (std::int64_t id = 0; id < 90; id += 3) kept.put(id, static_cast<std::uint32_t>(id));
  BatchLookup lookup(world.tables, world.features);
  lookup.find(world.ids(), kBatch, {true, 1});
  DeviceRows rows(lookup, {0, 0, 1}, {&kept, nullptr, nullptr}, 1);
  std::vector<float> narrow(rows.others(0) * kDim, 0.5f), wide(rows.others(1) * (kDim + 2), -0.25f);
  rows.take_gradients({narrow.data(), wide.data()}, {1, 1, 1, 1, 1}, 2);
  std::vector<TableStep> steps;
  for (std::size_t table = 0; table < 3; ++table) steps.push_back({world.tables[table], &lookup.gradients(table)});
  Step step;
  step.rule = Rule::kAdagrad;
  step.lr = 0.1f;
  step_tables(steps, step, 2);
  for (std::size_t table = 0; table < 3; ++table) {
    const TrainingRows all = world.tables[table]->export_rows();
    const std::vector<float> before = look(*plain.tables[table], all.ids, true);
    const std::uint32_t dim = world.tables[table]->dim();
    for (std::size_t i = 0; i < all.ids.size(); ++i) {
      const bool stays = table == 0 && all.ids[i] % 3 == 0;
      CHECK((all.rows[i * dim] == before[i * dim]) == stays);
    }
  }
}

int main() { return check::run_all(); }
