// Lookups of many tables at once: what they give and leave does not depend on threads, and is what single ones give.
#include <memory>

#include "check.h"
#include "rows/isa.h"
#include "tables.h"

using namespace emberline;
using namespace emberline::tests;

namespace {

struct Jagged {
  std::vector<std::int64_t> values, offsets{0};
  std::vector<float> weights;

  FeatureIds ids() const { return {values.data(), offsets.data(), weights.data(), values.size()}; }
};

Jagged jagged(std::size_t batch, std::uint64_t seed, bool single = false) {
  Jagged made;
  for (std::size_t bag = 0; bag < batch; ++bag) {
    const std::size_t n = single ? 1 : mix(++seed) % 5;
    for (std::size_t i = 0; i < n; ++i) {
      made.values.push_back(static_cast<std::int64_t>(mix(++seed) % 300));
      made.weights.push_back(static_cast<float>(mix(++seed) % 100) / 32.0f);
    }
    made.offsets.push_back(static_cast<std::int64_t>(made.values.size()));
  }
  return made;
}

constexpr std::size_t kBatch = 500;
constexpr std::uint32_t kDim = 20, kLength = 2;

// Three tables, five features; two features share the first table.
struct World {
  explicit World(Rule rule, std::size_t with_threads) : threads(with_threads) {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      owned.push_back(std::make_unique<TrainingTable>(
          options({.dim = kDim, .rule = rule, .seed = seed, .admit_after = seed == 2 ? 2u : 1u})));
      tables.push_back(owned.back().get());
    }
    features = {{0, Pooling::kSum, 0},
                {0, Pooling::kMean, 0},
                {1, Pooling::kWeighted, 0},
                {2, Pooling::kNone, kLength},
                {2, Pooling::kSum, 0}};
  }

  // Trains one batch; returns what was looked up.
  std::vector<std::vector<float>> batch(std::uint64_t seed, Step step) {
    BatchLookup lookup(tables, features);
    std::vector<Jagged> given;
    for (std::size_t f = 0; f < features.size(); ++f) given.push_back(jagged(kBatch, seed * 100 + f, f == 4));
    std::vector<FeatureIds> ids;
    std::vector<std::vector<float>> out, grads;
    std::vector<FeatureValues<float>> to;
    std::vector<FeatureValues<const float>> from;
    for (std::size_t f = 0; f < features.size(); ++f) {
      const std::size_t width = features[f].pooling == Pooling::kNone ? kLength * kDim : kDim;
      ids.push_back(given[f].ids());
      out.emplace_back(kBatch * width, -1.0f);
      grads.emplace_back(kBatch * width);
      for (float& grad : grads.back()) grad = static_cast<float>(mix(++seed) % 100) / 50.0f - 1.0f;
    }
    for (std::size_t f = 0; f < features.size(); ++f) {
      to.push_back({out[f].data(), kDim});
      from.push_back({grads[f].data(), kDim});
    }
    lookup.run(ids, kBatch, to, {true, threads});
    lookup.set_gradients(from, threads);
    std::vector<TableStep> steps;
    for (std::size_t table = 0; table < tables.size(); ++table) {
      steps.push_back({tables[table], &lookup.gradients(table)});
    }
    step.scale = 1.0f / (1.0f + static_cast<float>(squared_norm(steps, threads)));
    step_tables(steps, step, threads);
    return out;
  }

  std::size_t threads;
  std::vector<std::unique_ptr<TrainingTable>> owned;
  std::vector<TrainingTable*> tables;
  std::vector<FeatureLookup> features;
};

Step step_of(Rule rule) {
  Step step;
  step.rule = rule;
  step.lr = 0.1f;
  step.eps = 1e-6f;
  step.weight_decay = rule == Rule::kFtrl ? 0.0f : 0.01f;
  step.momentum = 0.9f;
  step.beta1 = 0.9f;
  step.beta2 = 0.99f;
  step.decay = 0.5f;
  step.period = 3;
  step.l1 = 0.01f;
  step.row_clip = 0.5f;
  return step;
}

}  // namespace

TEST(results_do_not_depend_on_threads_or_instructions) {
  for (int rule = 0; rule < kRules; ++rule) {
    std::vector<std::vector<float>> expected_out;
    std::vector<TrainingRows> expected;
    for (const Isa set : isas()) {
      set_isa(isa_name(set));
      for (const std::size_t threads : {1, 2, 5}) {
        World world(static_cast<Rule>(rule), threads);
        std::vector<std::vector<float>> out;
        for (std::uint64_t seed = 0; seed < 4; ++seed) out = world.batch(seed, step_of(static_cast<Rule>(rule)));
        std::vector<TrainingRows> rows;
        for (TrainingTable* table : world.tables) rows.push_back(table->export_rows());
        if (expected.empty()) {
          expected_out = out;
          expected = rows;
        }
        CHECK(out == expected_out);
        for (std::size_t table = 0; table < rows.size(); ++table) {
          CHECK(rows[table].ids == expected[table].ids && rows[table].rows == expected[table].rows);
          CHECK(rows[table].slots == expected[table].slots && rows[table].counts == expected[table].counts);
        }
      }
    }
  }
}

TEST(gradients_of_two_lookups_are_one_step) {
  TrainingTable merged(options({})), at_once(options({}));
  const std::vector<std::int64_t> first = {1, 2, 2, 3}, second = {3, 4, 1}, both = {1, 2, 2, 3, 3, 4, 1};
  std::vector<float> grads(both.size() * 4);
  for (std::size_t i = 0; i < grads.size(); ++i) grads[i] = static_cast<float>(i) - 9.0f;
  for (TrainingTable* table : {&merged, &at_once}) look(*table, both, true);
  const TableGradients one = TableGradients::of_rows(merged, first.data(), first.size(), grads.data());
  const TableGradients two = TableGradients::of_rows(merged, second.data(), second.size(), grads.data() + 16);
  TableGradients all = TableGradients::merged({&one, &two});
  Step step;
  step.rule = Rule::kAdagrad;
  step.lr = 0.5f;
  CHECK(step_tables({{&merged, &all}}, step, 1) == 4);
  CHECK(tests::step(at_once, both, grads, 0.5f, 0.0f) == 4);
  CHECK(merged.export_rows().rows == at_once.export_rows().rows);
}

TEST(rows_that_move_or_go_before_the_step_are_found_again) {
  TrainingTable table(options({.dim = 1, .rule = Rule::kSgd, .scale = 0.0f}));
  look(table, {1, 2, 3}, true);
  const std::vector<std::int64_t> ids = {1, 2, 4};
  const std::vector<float> grads = {1, 2, 3};
  TableGradients gradients = TableGradients::of_rows(table, ids.data(), ids.size(), grads.data());
  const std::int64_t gone = 1;
  table.erase(&gone, 1);
  look(table, {7, 4}, true);  // 7 takes the place of 1; 4 had no row when it was read
  Step step;
  step.lr = 1.0f;
  CHECK(step_tables({{&table, &gradients}}, step, 1) == 1);
  CHECK((table.export_rows().rows == std::vector<float>{-2, 0, 0, 0}));
}

TEST(what_is_no_lookup_is_refused) {
  TrainingTable table(options({}));
  CHECK_THROWS(BatchLookup({&table}, {{1, Pooling::kSum, 0}}), std::invalid_argument);
  CHECK_THROWS(BatchLookup({&table}, {{0, Pooling::kNone, 0}}), std::invalid_argument);
  BatchLookup lookup({&table}, {{0, Pooling::kSum, 0}});
  const std::int64_t values[] = {1, 2}, offsets[] = {0, 2, 1};
  std::vector<float> out(8);
  CHECK_THROWS(lookup.run({{values, offsets, nullptr, 2}}, 2, {{out.data(), 4}}, {}), std::invalid_argument);
}

int main() { return check::run_all(); }
