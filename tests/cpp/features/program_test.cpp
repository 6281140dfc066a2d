// Goal: a program gives the right ids and numbers, and gives the same from many threads at once.
// The exhaustive comparison with a second implementation is in Python (tests/unit/features); here sanitizers watch.
#include "check.h"

#include <atomic>
#include <cmath>
#include <limits>
#include <thread>

#include "columns.h"

using Ids = std::vector<std::int64_t>;

TEST(ids_pass_through_and_nulls_are_left_out) {
  const Program program({input("x", Wire::kInt64)}, {ids_feature(0, {0})}, {});
  const OwnedColumn column = ints_column({5, -1, std::numeric_limits<std::int64_t>::min()}).with_valid({1, 0, 1}),
                    plain = ints_column({7});
  const Batch batch = program.run({&column.view}, 3);
  CHECK((bags_of(batch).values == Ids{5, std::numeric_limits<std::int64_t>::min()}));
  CHECK((bags_of(batch).offsets == Ids{0, 1, 1, 2}));
  CHECK((bags_of(program.run({&plain.view}, 1)).values == Ids{7}));
}

TEST(one_user_row_stands_for_the_whole_batch) {
  Input user = list_input("history", Wire::kInt64), item = input("item", Wire::kInt64);
  user.user_side = true;
  Feature cross = ids_feature(2, {0, 1});
  cross.cross.emplace(hash_key(3, ""), 0, 16);
  const Program program({user, item}, {ids_feature(0, {0}), ids_feature(1, {1}), cross}, {});
  const OwnedColumn history = ints_column({8, 9}).with_offsets({0, 2}), items = ints_column({1, 2, 3});
  const Batch batch = program.run({&history.view, &items.view}, 3);
  CHECK((bags_of(batch).values == Ids{8, 9, 8, 9, 8, 9}));
  CHECK((bags_of(batch).offsets == Ids{0, 2, 4, 6}));
  CHECK((bags_of(batch, 2).offsets == Ids{0, 2, 4, 6}));
  const std::uint64_t key = hash_key(3, "");
  const auto crossed = [&](std::int64_t a, std::int64_t b) {
    return to_id(mix(absorb(absorb(key, hash_int(a, key)), hash_int(b, key)) + key), 0);
  };
  CHECK((bags_of(batch, 2).values ==
         Ids{crossed(8, 1), crossed(9, 1), crossed(8, 2), crossed(9, 2), crossed(8, 3), crossed(9, 3)}));
}

TEST(missing_null_and_empty_have_their_meaning) {
  Input list = list_input("tags", Wire::kBytes);
  list.missing_is_null = true;
  list.empty_is_null = true;
  list.fallback = std::vector<std::string>{"none"};
  Input number = input("age", Wire::kFp64);
  number.missing_is_null = true;
  const Vocabulary vocabulary(std::vector<std::string>{"none", "a"}, true, 99);
  const Program program({list, number}, {ids_feature(0, {0}, {vocabulary}), dense_feature(0, 1, 1, {Affine{2.0, 1.0}})},
                        {1});
  const Batch missing = program.run({nullptr, nullptr}, 2);
  CHECK((bags_of(missing).values == Ids{0, 0}));
  CHECK((dense_of(missing) == std::vector<float>{0.0f, 0.0f}));
  const OwnedColumn tags = bytes_column({"a", "b"}).with_offsets({0, 2, 2});
  const OwnedColumn ages = floats_column({std::nan(""), 3.0});
  const Batch given = program.run({&tags.view, &ages.view}, 2);
  CHECK((bags_of(given).values == Ids{1, 99, 0}));
  CHECK((bags_of(given).offsets == Ids{0, 2, 3}));
  CHECK((dense_of(given) == std::vector<float>{0.0f, 7.0f}));
}

TEST(truncate_pad_and_slice_move_whole_rows) {
  const Program program(
      {list_input("x", Wire::kInt64)},
      {ids_feature(0, {0}, {Truncate{2, true}}), ids_feature(1, {0}, {Truncate{2, false}, Pad{3, std::int64_t{-7}}}),
       dense_feature(0, 2, 0, {Pad{8, std::int64_t{0}}, Slice{1, 3}})},
      {2});
  const OwnedColumn lists = ints_column({1, 2, 3, 4}).with_offsets({0, 3, 3, 4});
  const Batch batch = program.run({&lists.view}, 3);
  CHECK((bags_of(batch).values == Ids{2, 3, 4}));
  CHECK((bags_of(batch, 1).values == Ids{1, 2, -7, -7, -7, -7, 4, -7, -7}));
  CHECK((dense_of(batch) == std::vector<float>{2, 3, 0, 0, 0, 0}));
}

TEST(division_rounds_down_and_leaves_what_is_over) {
  constexpr std::int64_t low = std::numeric_limits<std::int64_t>::min(),
                         high = std::numeric_limits<std::int64_t>::max();
  const Program program({list_input("x", Wire::kInt64)},
                        {ids_feature(0, {0}, {FloorDivide{4}}), ids_feature(1, {0}, {Modulo{4}}),
                         ids_feature(2, {0}, {FloorDivide{1}}), ids_feature(3, {0}, {Modulo{high}})},
                        {});
  const OwnedColumn lists = ints_column({-5, -4, -1, 0, 3, 4, low, high}).with_offsets({0, 8});
  const Batch batch = program.run({&lists.view}, 1);
  CHECK((bags_of(batch).values == Ids{-2, -1, -1, 0, 0, 1, low / 4, high / 4}));
  CHECK((bags_of(batch, 1).values == Ids{3, 0, 3, 0, 3, 0, 0, 3}));
  CHECK((bags_of(batch, 2).values == Ids{-5, -4, -1, 0, 3, 4, low, high}));
  CHECK((bags_of(batch, 3).values == Ids{high - 5, high - 4, high - 1, 0, 3, 4, high - 1, 0}));
}

TEST(integers_are_added_to_replaced_and_cut_at_the_point) {
  constexpr std::int64_t low = std::numeric_limits<std::int64_t>::min(),
                         high = std::numeric_limits<std::int64_t>::max();
  Input pairs = input("x", Wire::kInt64);
  pairs.width = 2;
  const Program program({pairs, input("y", Wire::kFp64)},
                        {ids_feature(0, {0}, {Add{{1, 100}}}), ids_feature(1, {0}, {Replace{0, 5, false, -9}}),
                         ids_feature(2, {0}, {Replace{0, high, true, 0}}), ids_feature(3, {1}, {Integer{}}),
                         ids_feature(4, {0}, {Multiply{-2}})},
                        {});
  const OwnedColumn ids = ints_column({0, 5, high, 6, -1, low}).with_rows(3);
  const OwnedColumn floats = floats_column({-2.9, 9.3e18, -std::numeric_limits<double>::infinity()});
  const Batch batch = program.run({&ids.view, &floats.view}, 3);
  CHECK((bags_of(batch).values == Ids{1, 105, low, 106, 0, low + 100}));
  CHECK((bags_of(batch, 1).values == Ids{-9, -9, high, 6, -1, low}));
  CHECK((bags_of(batch, 2).values == Ids{0, 5, high, 6, 0, 0}));
  CHECK((bags_of(batch, 3).values == Ids{-2, low, low}));
  CHECK((bags_of(batch, 4).values == Ids{0, -10, 2, -12, 2, 0}));
}

TEST(hours_and_days_are_right_at_both_ends_of_time) {
  constexpr std::int64_t low = std::numeric_limits<std::int64_t>::min(),
                         high = std::numeric_limits<std::int64_t>::max(), hour = 3600, day = 24 * hour, week = 7 * day;
  const Program program(
      {list_input("x", Wire::kInt64)},
      {ids_feature(0, {0}, {PartOfWeek{1, 0, day, hour}}), ids_feature(1, {0}, {PartOfWeek{1, 3 * day, week, day}}),
       ids_feature(2, {0}, {PartOfWeek{1, week - 1, day, hour}})},
      {});
  const OwnedColumn lists = ints_column({0, -1, hour, low, high}).with_offsets({0, 5});
  const Batch batch = program.run({&lists.view}, 1);
  CHECK((bags_of(batch).values == Ids{0, 23, 1, 8, 15}));
  CHECK((bags_of(batch, 1).values == Ids{3, 2, 3, 6, 6}));
  CHECK((bags_of(batch, 2).values == Ids{23, 23, 0, 8, 15}));
}

TEST(pieces_that_are_empty_are_left_out) {
  const Program program(
      {input("x", Wire::kBytes)},
      {ids_feature(0, {0}, {Split{"||", 3, "x"}, Vocabulary(std::vector<std::string>{"a", "|b"}, true, 9)})}, {});
  const OwnedColumn texts = bytes_column({"a|||b||", "||", "", "a", "|||"});
  const Batch batch = program.run({&texts.view}, 5);
  CHECK((bags_of(batch).values == Ids{0, 1, 0, 9}));
  CHECK((bags_of(batch).offsets == Ids{0, 2, 2, 2, 3, 4}));
}

TEST(boundaries_belong_to_the_bucket_above_them) {
  Input number = input("x", Wire::kFp64);
  number.missing_is_null = true;  // so NaN is null
  const Program program({number}, {ids_feature(0, {0}, {Bucketise{{0.0, 1.5}}})}, {});
  const double inf = std::numeric_limits<double>::infinity();
  const OwnedColumn column = floats_column({-inf, -0.1, 0.0, 1.4, 1.5, inf, std::nan("")});
  const Batch batch = program.run({&column.view}, 7);
  CHECK((bags_of(batch).values == Ids{0, 0, 1, 1, 2, 2}));
}

TEST(an_fp32_input_holds_float32_whatever_it_came_as) {
  const Program program({input("x", Wire::kFp32)},
                        {ids_feature(0, {0}, {Bucketise{{0.7}}}), dense_feature(0, 1, 0, {Clip{-1e30, 1e30}})}, {1});
  const OwnedColumn doubles = floats_column({0.7, 0.8, 1e300, -1e300});
  const Batch batch = program.run({&doubles.view}, 4);
  CHECK((bags_of(batch).values == Ids{0, 1, 1, 0}));  // 0.7 as a float32 is below 0.7
  CHECK((dense_of(batch) == std::vector<float>{0.7f, 0.8f, 1e30f, -1e30f}));
  const OwnedColumn ints = ints_column({16777217});
  CHECK((dense_of(program.run({&ints.view}, 1)) == std::vector<float>{16777216.0f}));
}

TEST(an_empty_batch_gives_empty_results) {
  Input user = input("u", Wire::kInt64);
  user.user_side = true;
  const Program program({user}, {ids_feature(0, {0}), dense_feature(0, 1, 0)}, {1});
  const OwnedColumn one = ints_column({4}), none = ints_column({});
  for (const ColumnView* column : {&one.view, &none.view}) {
    const Batch batch = program.run({column}, 0);
    CHECK(bags_of(batch).values.empty());
    CHECK((bags_of(batch).offsets == Ids{0}));
    CHECK(dense_of(batch).empty());
  }
}

TEST(threads_run_one_program_at_once) {
  Feature cross = ids_feature(1, {0, 1});
  cross.cross.emplace(hash_key(1, ""), 1000, 64);
  const Vocabulary vocabulary(std::vector<std::string>{"a", "bb"}, false, 0);
  const Program program({list_input("tags", Wire::kBytes), input("x", Wire::kInt64)},
                        {ids_feature(0, {0}, {vocabulary}), cross, dense_feature(0, 1, 1, {Log{}}),
                         ids_feature(2, {0}, {Hash{hash_key(5, "s"), 100}})},
                        {1});
  const OwnedColumn tags = bytes_column({"a", "bb", "ccc", ""}).with_offsets({0, 1, 1, 4}), x = ints_column({1, 2, 3});
  const std::vector<const ColumnView*> columns{&tags.view, &x.view};
  const Batch expected = program.run(columns, 3);
  std::atomic<int> different{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        const Batch batch = program.run(columns, 3);
        bool same = dense_of(batch) == dense_of(expected);
        for (std::size_t f = 0; f < 3; ++f) same = same && bags_of(batch, f) == bags_of(expected, f);
        if (!same) ++different;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(different == 0);
}

RUN_ALL_TESTS()
