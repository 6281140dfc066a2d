// Goal: no column, however wrong, is read outside its bounds: it is refused with the input's name.
#include "check.h"

#include <limits>

#include "columns.h"

using Ids = std::vector<std::int64_t>;

namespace {

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

// The message of the refusal, "" when nothing was thrown or the field is another.
std::string refusal(const Program& program, const ColumnView* column, std::int64_t batch) {
  try {
    program.run({column}, batch);
  } catch (const InvalidInput& error) {
    return error.field() == "x" ? error.what() : "";
  }
  return "";
}

bool says(const std::string& message, const std::string& part) { return message.find(part) != std::string::npos; }

Program of(Input in) { return Program({std::move(in)}, {ids_feature(0, {0})}, {}); }

}  // namespace

TEST(ragged_lengths_that_do_not_add_up_are_refused) {
  const Program program = of(list_input("x", Wire::kInt64));
  const auto with = [&](const Ids& offsets) {
    const OwnedColumn column = ints_column({1, 2, 3}).with_offsets(offsets);
    return refusal(program, &column.view, static_cast<std::int64_t>(offsets.size()) - 1);
  };
  CHECK(says(with({0, 2}), "add up to 2, but 3"));
  CHECK(says(with({0, 2, 4}), "row 1: the lengths add up to more"));
  CHECK(says(with({0, 3, 2, 3}), "row 1: negative length"));
  CHECK(says(with({1, 3}), "start at 1"));
  CHECK(says(with({0, kHuge, 3}), "row 0"));
  CHECK(says(with({0, std::numeric_limits<std::int64_t>::min(), 3}), "row 0: negative length"));
  CHECK(with({0, 3}).empty());
}

TEST(lists_above_max_length_are_refused) {
  const Program program = of(list_input("x", Wire::kInt64, 2));
  const OwnedColumn column = ints_column({1, 2, 3, 4}).with_offsets({0, 1, 4});
  CHECK(says(refusal(program, &column.view, 2), "row 1: has 3 values, max_length is 2"));
}

TEST(batches_that_do_not_match_are_refused) {
  const OwnedColumn three = ints_column({1, 2, 3}), one = ints_column({1});
  const Program program = of(input("x", Wire::kInt64));
  CHECK(says(refusal(program, &three.view, 2), "has 3 rows, the batch has 2"));
  CHECK(says(refusal(program, &one.view, 2), "only inputs of side 'user'"));
  CHECK(says(refusal(program, nullptr, 2), "is missing"));
  CHECK_THROWS(program.run({&one.view}, -1), InvalidInput);
  Input user = input("x", Wire::kInt64);
  user.user_side = user.missing_is_null = true;
  CHECK_THROWS(of(user).run({&one.view}, std::int64_t{1} << 40), InvalidInput);
  CHECK_THROWS(of(user).run({nullptr}, kHuge), InvalidInput);
}

TEST(shapes_and_flags_are_counted) {
  Input wide = input("x", Wire::kInt64);
  wide.width = 2;
  OwnedColumn column = ints_column({1, 2, 3});
  column.view.rows = 2;
  CHECK(says(refusal(of(wide), &column.view, 2), "expected width 2, got 1"));
  column.view.width = 2;
  CHECK(says(refusal(of(wide), &column.view, 2), "3 values do not fill 2 rows of width 2"));
  const OwnedColumn flagged = ints_column({1, 2, 3}).with_valid({1, 1});
  CHECK(says(refusal(of(input("x", Wire::kInt64)), &flagged.view, 3), "2 valid flags, expected 3"));
  CHECK(says(refusal(of(list_input("x", Wire::kInt64)), &flagged.view, 3), "expected a list"));
  const OwnedColumn list = ints_column({1}).with_offsets({0, 1});
  CHECK(says(refusal(of(input("x", Wire::kInt64)), &list.view, 1), "got a list"));
}

TEST(dtypes_are_exact_but_for_integers_and_their_floats) {
  const OwnedColumn ints = ints_column({1}), floats = floats_column({1.0}), bytes = bytes_column({"1"});
  CHECK(says(refusal(of(input("x", Wire::kInt64)), &floats.view, 1), "expected INT64, got FP64"));
  CHECK(says(refusal(of(input("x", Wire::kInt64)), &bytes.view, 1), "expected INT64, got BYTES"));
  CHECK(says(refusal(of(input("x", Wire::kBytes)), &ints.view, 1), "expected BYTES, got INT64"));
  CHECK(says(refusal(of(input("x", Wire::kBool)), &ints.view, 1), "expected BOOL, got INT64"));
  CHECK(refusal(of(input("x", Wire::kUint64)), &ints.view, 1).empty());
  CHECK(accepts(Wire::kFp32, Wire::kUint64) && accepts(Wire::kInt32, Wire::kInt64) &&
        !accepts(Wire::kFp32, Wire::kBool));
}

TEST(bytes_outside_their_buffer_are_refused) {
  const Program program({input("x", Wire::kBytes)}, {ids_feature(0, {0}, {Hash{1, 0}})}, {});
  const auto with = [&](std::int64_t start, std::int64_t end) {
    OwnedColumn column = bytes_column({"abc"});
    column.starts[0] = start;
    column.ends[0] = end;
    return says(refusal(program, &column.view, 1), "do not lie in the buffer");
  };
  CHECK(with(-1, 2));
  CHECK(with(0, 4));
  CHECK(with(2, 1));
  CHECK(with(kHuge, kHuge));
  CHECK(!with(0, 3));
}

TEST(dense_values_that_no_float32_holds_are_refused) {
  const Program program({input("x", Wire::kFp64)}, {dense_feature(0, 1, 0)}, {1});
  for (const double value :
       {1e300, std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()}) {
    const OwnedColumn column = floats_column({1.0, value});
    CHECK(says(refusal(program, &column.view, 2), "row 1: the dense feature 'dense0' is not a finite float32"));
  }
}

TEST(nan_is_refused_with_its_row_unless_the_spec_says_what_it_means) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Input fixed = input("x", Wire::kFp64), list = list_input("x", Wire::kFp64);
  fixed.width = 2;
  const OwnedColumn values = floats_column({1.0, 2.0, 3.0, nan}).with_rows(2);
  const OwnedColumn lists = floats_column({1.0, 2.0, 3.0, nan}).with_offsets({0, 2, 2, 4});
  const auto says_it = [&](const Input& of, const ColumnView& column, std::int64_t batch) {
    return refusal(Program({of}, {ids_feature(0, {0}, {Bucketise{{0.0}}})}, {}), &column, batch);
  };
  CHECK(says(says_it(fixed, values.view, 2), "input 'x', row 1: NaN"));
  CHECK(says(says_it(list, lists.view, 3), "input 'x', row 2: NaN (or null) in its list"));
  const OwnedColumn null = floats_column({1.0, 2.0, 3.0, nan}).with_rows(2).with_valid({1, 1, 1, 0});
  CHECK(says_it(fixed, null.view, 2).empty());
  fixed.fallback = std::vector<double>{0.5};
  list.missing_is_null = true;
  CHECK(says_it(fixed, values.view, 2).empty());
  CHECK(says_it(list, lists.view, 3).empty());
}

TEST(a_cross_is_bounded_before_it_is_built) {
  Feature cross = ids_feature(0, {0, 0, 0, 0});
  cross.cross.emplace(1, 0, 1 << 20);
  const Program program({list_input("x", Wire::kInt64, 1 << 20)}, {cross}, {});
  const OwnedColumn column = ints_column(Ids(100'000, 1)).with_offsets({0, 100'000});
  CHECK(says(refusal(program, &column.view, 1), "row 0: the cross of 'x' x 'x' x 'x' x 'x' has more than 1048576"));
}

TEST(programs_that_do_not_fit_are_not_built) {
  CHECK_THROWS(Program({}, {ids_feature(0, {0})}, {}), std::invalid_argument);
  CHECK_THROWS(Program({input("x", Wire::kInt64)}, {ids_feature(1, {0})}, {}), std::invalid_argument);
  CHECK_THROWS(Program({input("x", Wire::kInt64)}, {dense_feature(1, 1, 0)}, {1}), std::invalid_argument);
  CHECK_THROWS(Program({input("x", Wire::kInt64)}, {ids_feature(0, {0, 0})}, {}), std::invalid_argument);
}

RUN_ALL_TESTS()
