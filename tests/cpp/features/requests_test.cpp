// Goal: requests that are joined give, row by row, what each gives alone; a request that is refused is named; results
// need nothing of the requests that they were made of.
#include "check.h"

#include <cmath>
#include <optional>

#include "columns.h"

using Ids = std::vector<std::int64_t>;

namespace {

// An input in every form, with the features that read it.
Program every_form() {
  Input wide = input("wide", Wire::kInt64), user = input("user", Wire::kInt64), price = input("price", Wire::kFp64);
  Input tags = list_input("tags", Wire::kBytes), clicks = list_input("clicks", Wire::kInt64);
  Input weights = list_input("weights", Wire::kFp64), history = list_input("history", Wire::kInt64);
  Input rare = input("rare", Wire::kInt64);
  wide.width = 3;
  user.user_side = history.user_side = true;
  price.missing_is_null = rare.missing_is_null = true;
  rare.fallback = Ids{77};
  Feature cross = ids_feature(4, {0, 3});
  cross.cross.emplace(hash_key(3, ""), 1000, 64);
  Feature weighted = ids_feature(5, {4});
  weighted.weights = 5;
  return Program({wide, user, price, tags, clicks, weights, history, rare},
                 {ids_feature(0, {0}, {Slice{1, 2}}), ids_feature(1, {1}), ids_feature(2, {3}, {Hash{5, 0}}),
                  ids_feature(3, {0}), cross, weighted, ids_feature(6, {6}), ids_feature(7, {7}),
                  dense_feature(0, 1, 2, {Clip{-1.0, 1.0}}), dense_feature(1, 3, 0)},
                 {4});
}

// One request in all forms, with its own arrays. users: rows of the inputs of a user's side, 1 or the batch.
struct OwnedRequest {
  std::vector<OwnedColumn> columns;
  std::vector<const ColumnView*> views;
  std::int64_t batch = 0;

  OwnedRequest(std::int64_t rows, std::int64_t users, std::int64_t seed, bool has_nulls) : batch(rows) {
    Ids wide, user, clicks, ends{0}, history, history_ends{0};
    std::vector<double> price, weights;
    std::vector<std::string> tags;
    Ids tag_ends{0};
    for (std::int64_t row = 0; row < rows; ++row) {
      for (int k = 0; k < 3; ++k) wide.push_back(seed * 100 + row * 3 + k);
      price.push_back(row % 3 == 2 ? std::nan("") : static_cast<double>(seed + row) / 4 - 1);
      for (std::int64_t k = 0; k < (row + seed) % 3; ++k) tags.push_back("t" + std::to_string(seed + k));
      for (std::int64_t k = 0; k < (row * seed) % 4; ++k) {
        clicks.push_back(seed - k);
        weights.push_back(static_cast<double>(k) / 2);
      }
      tag_ends.push_back(static_cast<std::int64_t>(tags.size()));
      ends.push_back(static_cast<std::int64_t>(clicks.size()));
    }
    for (std::int64_t row = 0; row < users; ++row) {
      user.push_back(seed * 7 + row);
      for (std::int64_t k = 0; k < seed % 3; ++k) history.push_back(seed * 11 + k);
      history_ends.push_back(static_cast<std::int64_t>(history.size()));
    }
    columns.reserve(8);
    OwnedColumn all = ints_column(wide);
    all.view.rows = rows;
    all.view.width = 3;
    if (has_nulls) all = std::move(all).with_valid(std::vector<std::uint8_t>(wide.size(), seed % 2 == 0 ? 0 : 1));
    columns.push_back(std::move(all));
    columns.push_back(ints_column(user));
    columns.push_back(floats_column(price));
    columns.push_back(bytes_column(tags).with_offsets(tag_ends));
    columns.push_back(ints_column(clicks).with_offsets(ends));
    columns.push_back(floats_column(weights).with_offsets(ends));
    columns.push_back(ints_column(history).with_offsets(history_ends));
    for (const OwnedColumn& column : columns) views.push_back(&column.view);
    views.push_back(nullptr);
  }
  OwnedRequest(OwnedRequest&&) = default;

  Request request() const { return {views, batch}; }
};

struct Results {
  std::vector<Bags> ids;
  std::vector<float> dense;
  bool operator==(const Results&) const = default;
};

Results results_of(const Batch& batch) {
  Results out;
  for (std::size_t i = 0; i < batch.ids.size(); ++i) out.ids.push_back(bags_of(batch, i));
  out.dense = dense_of(batch);
  return out;
}

void append(Results& to, const Results& more) {
  if (to.ids.empty()) {
    to = more;
    return;
  }
  for (std::size_t i = 0; i < to.ids.size(); ++i) {
    Bags& bags = to.ids[i];
    const Bags& other = more.ids[i];
    const std::int64_t before = bags.offsets.back();
    bags.values.insert(bags.values.end(), other.values.begin(), other.values.end());
    bags.weights.insert(bags.weights.end(), other.weights.begin(), other.weights.end());
    for (std::size_t row = 1; row < other.offsets.size(); ++row) bags.offsets.push_back(before + other.offsets[row]);
    bags.single = bags.single && other.single;
  }
  to.dense.insert(to.dense.end(), more.dense.begin(), more.dense.end());
}

}  // namespace

TEST(joined_requests_give_what_each_gives_alone) {
  const Program program = every_form();
  for (const std::vector<std::int64_t>& batches :
       {Ids{1}, Ids{3, 1}, Ids{0, 2}, Ids{1, 1, 1, 1}, Ids{5, 0, 2, 7}, Ids{40, 3}}) {
    for (const bool one_user : {false, true}) {
      std::optional<Batch> together;
      Results apart;
      {
        std::vector<OwnedRequest> owned;
        std::vector<Request> requests;
        for (std::size_t i = 0; i < batches.size(); ++i) {
          owned.emplace_back(batches[i], one_user ? 1 : batches[i], static_cast<std::int64_t>(i) + 1, i % 2 == 0);
        }
        for (const OwnedRequest& one : owned) {
          requests.push_back(one.request());
          append(apart, results_of(program.run({&requests.back(), 1})));
        }
        together.emplace(program.run(requests));
      }  // the requests are gone
      Batch moved = std::move(*together);
      together.reset();
      Results all = results_of(moved);
      for (std::size_t i = 0; i < all.ids.size(); ++i) apart.ids[i].single = all.ids[i].single;
      CHECK(all == apart);
      CHECK(moved.rows == static_cast<std::int64_t>(moved.ids[0].offsets.size()) - 1);
    }
  }
}

TEST(bags_of_one_id_are_said_to_be_so) {
  const Program program({input("x", Wire::kInt64), list_input("y", Wire::kInt64)},
                        {ids_feature(0, {0}), ids_feature(1, {1})}, {});
  const OwnedColumn x = ints_column({4, 5}), y = ints_column({6, 7}).with_offsets({0, 1, 2});
  const OwnedColumn null = ints_column({4, 5}).with_valid({1, 0});
  const Batch batch = program.run({&x.view, &y.view}, 2);
  CHECK(batch.ids[0].single);
  CHECK(!batch.ids[1].single);
  CHECK(!program.run({&null.view, &y.view}, 2).ids[0].single);
}

TEST(a_request_that_is_refused_is_named_with_its_own_row) {
  const Program program({input("x", Wire::kFp64), input("y", Wire::kInt64)},
                        {dense_feature(0, 1, 0), ids_feature(0, {1})}, {1});
  const OwnedColumn good = floats_column({1.0, 2.0}), bad = floats_column({1.0, 1e300}), ids = ints_column({1, 2}),
                    few = ints_column({1});
  const std::vector<const ColumnView*> fine{&good.view, &ids.view}, wrong{&bad.view, &ids.view},
      small{&good.view, &few.view};
  const auto refused = [&](const std::vector<Request>& requests) -> std::string {
    try {
      program.run(requests);
    } catch (const InvalidInput& error) {
      return std::to_string(error.request().value_or(99)) + " " + error.field() + " " + error.what();
    }
    return "";
  };
  CHECK(refused({{fine, 2}, {fine, 2}}).empty());
  CHECK(refused({{fine, 2}, {fine, 2}, {wrong, 2}}).starts_with("2 x input 'x', row 1: the dense feature"));
  CHECK(refused({{fine, 2}, {small, 2}, {wrong, 2}}).starts_with("1 y input 'y': has 1 row, the batch has 2"));
  CHECK(refused({{wrong, 2}}).starts_with("99 x input 'x', row 1"));
}

TEST(requests_of_other_forms_are_an_error_of_the_caller) {
  Input optional = input("x", Wire::kInt64);
  optional.missing_is_null = true;
  const Program program({optional}, {ids_feature(0, {0})}, {});
  const OwnedColumn ints = ints_column({1}), list = ints_column({1}).with_offsets({0, 1}),
                    floats = floats_column({1.0});
  const std::vector<const ColumnView*> one{&ints.view}, other{&list.view}, third{&floats.view}, none{nullptr}, two(2);
  for (const auto& columns : {other, third, none}) {
    const std::vector<Request> requests{{one, 1}, {columns, 1}};
    CHECK(!RequestSource::are_alike(requests[0], requests[1]));
    CHECK_THROWS(program.run(requests), std::invalid_argument);
  }
  const Request wrong{two, 1};
  CHECK_THROWS(program.run({&wrong, 1}), std::invalid_argument);
  CHECK(program.run(std::span<const Request>()).rows == 0);
}

TEST(more_rows_than_a_run_takes_are_refused_together_too) {
  Input user = input("x", Wire::kInt64);
  user.user_side = true;
  const Program program({user}, {ids_feature(0, {0})}, {});
  const OwnedColumn one = ints_column({1});
  const std::vector<const ColumnView*> columns{&one.view};
  for (const std::int64_t batch : {std::int64_t{1} << 40, std::numeric_limits<std::int64_t>::max(), std::int64_t{-1}}) {
    const std::vector<Request> requests{{columns, 1}, {columns, batch}};
    CHECK_THROWS(program.run(requests), InvalidInput);
  }
  const std::vector<Request> many(3, Request{columns, kMaxBatch / 2});
  CHECK_THROWS(RequestSource(many, 1), InvalidInput);
}

namespace {

// Rows of an INT64 of width 2, a BOOL and an FP32, column by column, at an address that suits none of the numbers.
struct OwnedBlock {
  std::unique_ptr<std::byte[]> memory;
  Block block;

  OwnedBlock(std::int64_t rows, std::int64_t seed, std::int64_t more = 0)
      : memory(new std::byte[21 * rows + 1 + more]) {
    std::byte* to = memory.get() + 1;
    block = {to, 21 * rows + more, rows};
    const auto put = [&](const auto& value) {
      std::memcpy(to, &value, sizeof(value));
      to += sizeof(value);
    };
    for (std::int64_t i = 0; i < 2 * rows; ++i) put(seed + i);
    for (std::int64_t i = 0; i < rows; ++i) put(static_cast<std::uint8_t>((seed + i) % 3));
    for (std::int64_t i = 0; i < rows; ++i) put(static_cast<float>(seed + i) / 2);
  }
};

}  // namespace

TEST(blocks_give_what_their_columns_give) {
  Input ids = input("ids", Wire::kInt64), gone = input("gone", Wire::kInt64);
  ids.width = 2;
  gone.missing_is_null = true;
  const Program program({input("f", Wire::kFp32), ids, gone, input("b", Wire::kBool)},
                        {ids_feature(0, {1}, {Slice{1, 2}}), ids_feature(1, {3}), ids_feature(2, {2}),
                         dense_feature(0, 1, 0), ids_feature(3, {1})},
                        {1});
  const BlockLayout layout({{1, Wire::kInt64, 2}, {3, Wire::kBool, 1}, {0, Wire::kFp32, 1}}, 4);
  CHECK(layout.row_bytes() == 21);
  for (const Ids& batches : {Ids{}, Ids{0}, Ids{1}, Ids{3}, Ids{1, 1, 1}, Ids{2, 0, 5}}) {
    std::vector<OwnedBlock> owned;
    std::vector<Block> blocks;
    Ids expected, flags, all;
    std::vector<float> floats;
    for (std::size_t i = 0; i < batches.size(); ++i) {
      const auto seed = static_cast<std::int64_t>(i) * 10;
      owned.emplace_back(batches[i], seed);
      blocks.push_back(owned.back().block);
      for (std::int64_t row = 0; row < batches[i]; ++row) {
        expected.push_back(seed + 2 * row + 1);
        all.insert(all.end(), {seed + 2 * row, seed + 2 * row + 1});
        flags.push_back((seed + row) % 3 != 0);
        floats.push_back(static_cast<float>(seed + row) / 2);
      }
    }
    const Batch batch = program.run(layout, blocks);
    CHECK(bags_of(batch, 0).values == expected);
    CHECK(bags_of(batch, 1).values == flags);
    CHECK(bags_of(batch, 2).values.empty());
    CHECK(bags_of(batch, 3).values == all);
    CHECK(dense_of(batch) == floats);
    CHECK(batch.rows == static_cast<std::int64_t>(floats.size()));
  }
}

TEST(blocks_and_layouts_that_do_not_fit_are_refused) {
  const Program program({input("x", Wire::kInt64), input("y", Wire::kBool), input("z", Wire::kFp32)},
                        {ids_feature(0, {0})}, {});
  const BlockLayout layout({{0, Wire::kInt64, 2}, {1, Wire::kBool, 1}, {2, Wire::kFp32, 1}}, 3);
  const OwnedBlock good(2, 1), longer(2, 1, 1);
  const auto run = [&](Block block) { return program.run(layout, {&block, 1}); };
  CHECK_THROWS(run(good.block), InvalidInput);  // x has a width of 1
  CHECK_THROWS(run(longer.block), InvalidInput);
  CHECK_THROWS(run({good.block.data, good.block.size, 1}), InvalidInput);
  CHECK_THROWS(run({good.block.data, good.block.size, -1}), InvalidInput);
  CHECK_THROWS(run({good.block.data, good.block.size, std::numeric_limits<std::int64_t>::max()}), InvalidInput);
  CHECK_THROWS(run({nullptr, 0, std::int64_t{1} << 60}), InvalidInput);
  CHECK_THROWS(program.run(BlockLayout({}, 2), {}), std::invalid_argument);
  CHECK_THROWS(program.run(BlockLayout({}, 3), {}), InvalidInput);  // x is missing
  CHECK_THROWS(BlockLayout({{3, Wire::kInt64, 1}}, 3), std::invalid_argument);
  CHECK_THROWS(BlockLayout({{0, Wire::kInt64, 1}, {0, Wire::kInt64, 1}}, 3), std::invalid_argument);
  CHECK_THROWS(BlockLayout({{0, Wire::kBytes, 1}}, 3), std::invalid_argument);
  CHECK_THROWS(BlockLayout({{0, Wire::kInt64, 0}}, 3), std::invalid_argument);
  CHECK_THROWS(BlockLayout({{0, Wire::kInt64, std::int64_t{1} << 61}}, 3), std::invalid_argument);
}

RUN_ALL_TESTS()
