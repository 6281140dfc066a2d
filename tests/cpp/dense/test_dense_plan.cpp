// A plan refuses steps that reach outside their values, and weights and users that are not its own.
#include <stdexcept>
#include <vector>

#include "check.h"
#include "dense/plan.h"

using namespace emberline;
using namespace emberline::dense;

namespace {

// An input of 3 floats, a constant of 3, scratch of 4, users' rows of 2, an output of 4.
const std::vector<ValueSpec> kValues = {
    {Kind::kInput, 3}, {Kind::kConstant, 3}, {Kind::kScratch, 4}, {Kind::kOfUser, 2}, {Kind::kOutput, 4}};
const std::vector<LinearSpec> kLayers = {{3, 4, false}};

Plan plan_of(std::vector<Step> steps, std::vector<IndexSpec> indices = {}) {
  return Plan(kValues, kLayers, std::move(indices), std::move(steps));
}

bool is_refused(Step step, std::vector<IndexSpec> indices = {}) {
  try {
    plan_of({std::move(step)}, std::move(indices));
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

// output = linear(input + constant) beside users' rows, in its second half.
struct World {
  Plan plan = plan_of({CombineStep{{0, 0}, {1, 0}, {2, 0}, 3, Binary::kAdd},
                       LinearStep{{2, 0}, {4, 0}, 3, 4, 1, 0, Activation::kNone}, CopyStep{{3, 0}, {4, 2}, 2}});
  PackedWeights weights;
  std::vector<float> matrix = {1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1}, bias = {10, 20, 30, 40};
  std::vector<float> input, users = {100, 200, 300, 400}, output;
  std::vector<std::int64_t> user_of_row;
  Arguments arguments;

  explicit World(std::size_t rows) : input(rows * 3), output(rows * 4) {
    weights.kernels = &dense_kernels(isa());
    weights.linears.push_back(
        pack_panels({matrix.data(), 3, 1, bias.data(), 3, 4}, weights.kernels->width, weights.kernels->vectors));
    weights.constants.emplace_back(3, 1.0f);
    for (std::size_t i = 0; i < rows; ++i) {
      input[i * 3] = static_cast<float>(i);
      user_of_row.push_back(static_cast<std::int64_t>(i % 2));
    }
    arguments = {{input.data()}, {users.data()}, {output.data()}, rows, user_of_row.data(), 2};
  }
};

}  // namespace

TEST(a_plan_computes_every_block) {
  for (const std::size_t rows : {std::size_t{0}, std::size_t{1}, std::size_t{48}, std::size_t{49}, std::size_t{200}}) {
    World world(rows);
    world.plan.run(world.weights, world.arguments);
    bool good = true;
    for (std::size_t i = 0; i < rows; ++i) {
      const float* out = world.output.data() + i * 4;
      good = good && out[0] == 11.0f + static_cast<float>(i) && out[1] == 21.0f;
      good = good && out[2] == (i % 2 == 0 ? 100.0f : 300.0f) && out[3] == (i % 2 == 0 ? 200.0f : 400.0f);
    }
    CHECK(good);
  }
}

TEST(steps_outside_their_values_are_refused) {
  CHECK(!is_refused(CopyStep{{0, 0}, {2, 1}, 3}));
  CHECK(is_refused(CopyStep{{0, 1}, {2, 0}, 3}));
  CHECK(is_refused(CopyStep{{0, 0}, {2, 2}, 3}));
  CHECK(is_refused(CopyStep{{0, 0}, {5, 0}, 3}));
  CHECK(is_refused(CopyStep{{9, 0}, {2, 0}, 3}));
  CHECK(is_refused(CopyStep{{0, 0}, {2, 0}, 0}));
  CHECK(is_refused(CopyStep{{0, 4000000000u}, {2, 0}, 3}));
  CHECK(is_refused(ActivateStep{{0, 0}, {2, 0}, 4, Activation::kRelu}));
  CHECK(is_refused(CombineStep{{2, 0}, {0, 0}, {2, 0}, 4, Binary::kAdd}));
  CHECK(!is_refused(SumStep{{2, 0}, {4, 0}, 2, 2, 1}));
  CHECK(is_refused(SumStep{{2, 0}, {4, 0}, 2, 3, 1}));
  CHECK(is_refused(SumStep{{2, 0}, {4, 0}, 1u << 31, 2, 1u << 31}));
  CHECK(is_refused(LinearStep{{0, 0}, {4, 0}, 3, 4, 2, 0, Activation::kNone}));
  CHECK(is_refused(LinearStep{{0, 0}, {4, 0}, 3, 3, 1, 0, Activation::kNone}));
  CHECK(is_refused(LinearStep{{0, 0}, {4, 0}, 3, 4, 1, 1, Activation::kNone}));
  CHECK(!is_refused(PairsStep{{{2, 0}, {2, 2}}, 2, 1, 0, {4, 0}}, {{2, 1}}));
  CHECK(is_refused(PairsStep{{{2, 0}, {2, 3}}, 2, 1, 0, {4, 0}}, {{2, 1}}));
  CHECK(is_refused(PairsStep{{{2, 0}, {2, 2}}, 2, 2, 0, {4, 0}}, {{2, 1}}));
  CHECK(is_refused(PairsStep{{{2, 0}, {2, 2}}, 2, 1, 1, {4, 0}}, {{2, 1}}));
  CHECK(is_refused(CopyStep{{2, 0}, {4, 0}, 3}, {{100000, 1}}));
}

TEST(what_is_given_is_never_written) {
  for (const std::uint32_t value : {0u, 1u}) CHECK(is_refused(CopyStep{{2, 0}, {value, 0}, 3}));
  CHECK(is_refused(CopyStep{{2, 0}, {3, 0}, 2}));
}

TEST(other_weights_inputs_and_users_are_refused) {
  World world(3);
  PackedWeights none = world.weights;
  none.constants.clear();
  CHECK_THROWS(world.plan.run(none, world.arguments), std::invalid_argument);
  Arguments other = world.arguments;
  other.inputs.clear();
  CHECK_THROWS(world.plan.run(world.weights, other), std::invalid_argument);
  for (const std::int64_t user : {std::int64_t{-1}, std::int64_t{2}}) {
    world.user_of_row[1] = user;
    CHECK_THROWS(world.plan.run(world.weights, world.arguments), std::invalid_argument);
  }
}

RUN_ALL_TESTS()
