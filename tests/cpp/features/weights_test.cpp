// Goal: each id keeps its own weight through what moves, drops and repeats ids; weights that do not fit are refused by
// name.
#include "check.h"

#include <cmath>
#include <limits>

#include "columns.h"

using Ids = std::vector<std::int64_t>;
using Weights = std::vector<float>;

namespace {

Feature weighted(std::vector<Transform> transforms = {}) {
  Feature out = ids_feature(0, {0}, std::move(transforms));
  out.weights = 1;
  return out;
}

Program lists(std::vector<Transform> transforms = {}, bool optional = false) {
  Input ids = list_input("ids", Wire::kInt64), weights = list_input("w", Wire::kFp64);
  ids.missing_is_null = weights.missing_is_null = optional;
  return Program({ids, weights}, {weighted(std::move(transforms))}, {});
}

std::string refusal(const Program& program, const ColumnView* ids, const ColumnView* weights, std::int64_t batch) {
  try {
    program.run({ids, weights}, batch);
  } catch (const InvalidInput& error) {
    return error.field() == "w" ? error.what() : "";
  }
  return "";
}

bool says(const std::string& message, const std::string& part) { return message.find(part) != std::string::npos; }

}  // namespace

TEST(weights_stay_beside_their_ids) {
  const OwnedColumn ids = ints_column({1, 2, 3, 4}).with_offsets({0, 3, 3, 4});
  const OwnedColumn weights = floats_column({0.5, -1, 2, 4}).with_offsets({0, 3, 3, 4});
  const Bags plain = bags_of(lists().run({&ids.view, &weights.view}, 3));
  CHECK(plain.weighted);
  CHECK((plain.values == Ids{1, 2, 3, 4}));
  CHECK((plain.weights == Weights{0.5f, -1, 2, 4}));
  const Bags last = bags_of(lists({Truncate{2, true}}).run({&ids.view, &weights.view}, 3));
  CHECK((last.values == Ids{2, 3, 4}));
  CHECK((last.weights == Weights{-1, 2, 4}));
  const Bags known = bags_of(lists({Vocabulary(Ids{3, 1}, false, 0)}).run({&ids.view, &weights.view}, 3));
  CHECK((known.values == Ids{1, 0}));
  CHECK((known.weights == Weights{0.5f, 2}));
  CHECK((known.offsets == Ids{0, 2, 2, 2}));
}

TEST(columns_of_a_fixed_input_have_weights_too) {
  Input ids = input("ids", Wire::kInt64), weights = input("w", Wire::kFp64);
  ids.width = weights.width = 3;
  const Program program({ids, weights}, {weighted({Slice{1, 3}})}, {});
  OwnedColumn values = ints_column({1, 2, 3, 4, 5, 6}).with_valid({1, 1, 0, 1, 1, 1});
  OwnedColumn given = floats_column({9, 2, std::nan(""), 9, 5, 6});
  values.view.rows = given.view.rows = 2;
  values.view.width = given.view.width = 3;
  const Bags out = bags_of(program.run({&values.view, &given.view}, 2));
  CHECK((out.values == Ids{2, 5, 6}));
  CHECK((out.weights == Weights{2, 5, 6}));
}

TEST(either_side_may_have_one_row_for_all) {
  Input ids = list_input("ids", Wire::kInt64), weights = list_input("w", Wire::kFp64);
  ids.user_side = weights.user_side = true;
  const Program program({ids, weights}, {weighted()}, {});
  const OwnedColumn one = ints_column({1, 2}).with_offsets({0, 2}),
                    one_weight = floats_column({3, 4}).with_offsets({0, 2});
  const OwnedColumn two = ints_column({1, 2, 5, 6}).with_offsets({0, 2, 4}),
                    two_weights = floats_column({3, 4, 7, 8}).with_offsets({0, 2, 4});
  const Bags both = bags_of(program.run({&one.view, &one_weight.view}, 2));
  CHECK((both.values == Ids{1, 2, 1, 2}));
  CHECK((both.weights == Weights{3, 4, 3, 4}));
  CHECK((both.offsets == Ids{0, 2, 4}));
  CHECK((bags_of(program.run({&one.view, &two_weights.view}, 2)).weights == Weights{3, 4, 7, 8}));
  CHECK((bags_of(program.run({&two.view, &one_weight.view}, 2)).weights == Weights{3, 4, 3, 4}));
  CHECK((bags_of(program.run({&two.view, &one_weight.view}, 2)).values == Ids{1, 2, 5, 6}));
}

TEST(an_empty_batch_has_no_weights) {
  const Program program = lists({}, true);
  const OwnedColumn none = ints_column({}).with_offsets({0});
  const Bags out = bags_of(program.run({&none.view, nullptr}, 0));
  CHECK(out.weighted);
  CHECK(out.values.empty());
  CHECK(out.weights.empty());
  CHECK((out.offsets == Ids{0}));
}

TEST(weights_that_do_not_fit_are_refused) {
  const Program program = lists({}, true);
  const double inf = std::numeric_limits<double>::infinity();
  const OwnedColumn ids = ints_column({1, 2, 3}).with_offsets({0, 1, 3});
  const auto with = [&](const std::vector<double>& values, const Ids& offsets) {
    const OwnedColumn weights = floats_column(values).with_offsets(offsets);
    return refusal(program, &ids.view, &weights.view, 2);
  };
  CHECK(with({1, 2, 3}, {0, 1, 3}).empty());
  CHECK(says(with({1, 2, 3}, {0, 2, 3}), "row 0: the number of weights is 2, that of values in 'ids' is 1"));
  CHECK(says(with({1, 2}, {0, 1, 2}), "row 1: the number of weights is 1, that of values in 'ids' is 2"));
  CHECK(says(with({1, 2, std::nan("")}, {0, 1, 3}), "row 1: a weight is null or NaN"));
  CHECK(says(with({1, 2, inf}, {0, 1, 3}), "row 1: a weight is not a finite float32"));
  CHECK(says(with({1, -1e39, 2}, {0, 1, 3}), "row 1: a weight is not a finite float32"));
  CHECK(says(refusal(program, &ids.view, nullptr, 2),
             "row 0: the number of weights is 0, that of values in 'ids' is 1: the weights are not in the request"));
  const OwnedColumn weights = floats_column({1}).with_offsets({0, 0, 1});
  CHECK(says(refusal(program, nullptr, &weights.view, 2),
             "row 1: the number of weights is 1, that of values in 'ids' is 0: 'ids' is not in the request"));
}

TEST(a_program_with_weights_that_cannot_fit_is_not_built) {
  const auto build = [](Input weights, Feature feature) {
    Program({list_input("ids", Wire::kInt64), std::move(weights)}, {std::move(feature)}, {});
  };
  CHECK_THROWS(build(list_input("w", Wire::kInt64), weighted()), std::invalid_argument);
  CHECK_THROWS(build(input("w", Wire::kFp64), weighted()), std::invalid_argument);
  CHECK_THROWS(build(list_input("w", Wire::kFp64), weighted({Pad{2, std::int64_t{0}}})), std::invalid_argument);
  Feature far = weighted();
  far.weights = 2;
  CHECK_THROWS(build(list_input("w", Wire::kFp64), far), std::invalid_argument);
}

RUN_ALL_TESTS()
