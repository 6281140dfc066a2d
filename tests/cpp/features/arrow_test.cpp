// Goal: columns in the memory of Arrow give what the same columns give that are handed over one by one; nothing is read
// outside of their buffers.
#include "features/arrow.h"

#include "check.h"

#include <cmath>

#include "columns.h"

using Ids = std::vector<std::int64_t>;

namespace {

// An Arrow array that owns its buffers at their exact size, and its children.
struct OwnedArrow {
  ArrowSchema schema{};
  ArrowArray array{};
  std::vector<std::unique_ptr<std::uint8_t[]>> memory;
  std::vector<const void*> buffers;
  std::vector<std::unique_ptr<OwnedArrow>> parts;
  std::vector<ArrowSchema*> schemas;
  std::vector<ArrowArray*> arrays;
};

std::unique_ptr<OwnedArrow> arrow(const char* format, std::int64_t length, std::int64_t offset = 0) {
  auto out = std::make_unique<OwnedArrow>();
  out->schema.format = format;
  out->array.length = length;
  out->array.offset = offset;
  out->array.null_count = -1;
  return out;
}

template <class T>
void add_buffer(OwnedArrow& to, const std::vector<T>& values) {
  const std::size_t bytes = values.size() * sizeof(T);
  to.memory.emplace_back(new std::uint8_t[bytes]);
  std::memcpy(to.memory.back().get(), values.data(), bytes);
  to.buffers.push_back(to.memory.back().get());
}

// flags: one a value from the first one on, which the offset leaves out too; none: no nulls.
void add_valid(OwnedArrow& to, const std::vector<int>& flags) {
  if (flags.empty()) return to.buffers.push_back(nullptr);
  std::vector<std::uint8_t> bits((flags.size() + 7) / 8);
  for (std::size_t i = 0; i < flags.size(); ++i) bits[i / 8] |= static_cast<std::uint8_t>(flags[i] << (i % 8));
  add_buffer(to, bits);
}

void finish(OwnedArrow& out) {
  out.array.buffers = out.buffers.data();
  out.array.n_buffers = static_cast<std::int64_t>(out.buffers.size());
  for (const auto& part : out.parts) {
    out.schemas.push_back(&part->schema);
    out.arrays.push_back(&part->array);
  }
  out.schema.children = out.schemas.data();
  out.array.children = out.arrays.data();
  out.schema.n_children = out.array.n_children = static_cast<std::int64_t>(out.parts.size());
}

template <class T>
std::unique_ptr<OwnedArrow> numbers(const char* format, const std::vector<T>& values,
                                    const std::vector<int>& flags = {}, std::int64_t offset = 0) {
  auto out = arrow(format, static_cast<std::int64_t>(values.size()) - offset, offset);
  add_valid(*out, flags);
  add_buffer(*out, values);
  finish(*out);
  return out;
}

template <class Offset = std::int32_t>
std::unique_ptr<OwnedArrow> text(const char* format, const std::vector<std::string>& values,
                                 const std::vector<int>& flags = {}) {
  auto out = arrow(format, static_cast<std::int64_t>(values.size()));
  std::vector<Offset> offsets{0};
  std::vector<char> data;
  for (const std::string& value : values) {
    data.insert(data.end(), value.begin(), value.end());
    offsets.push_back(static_cast<Offset>(data.size()));
  }
  add_valid(*out, flags);
  add_buffer(*out, offsets);
  add_buffer(*out, data);
  finish(*out);
  return out;
}

std::unique_ptr<OwnedArrow> dictionary(std::unique_ptr<OwnedArrow> index, std::unique_ptr<OwnedArrow> entries) {
  index->schema.dictionary = &entries->schema;
  index->array.dictionary = &entries->array;
  index->parts.push_back(std::move(entries));  // kept, and no child
  return index;
}

template <class Offset = std::int32_t>
std::unique_ptr<OwnedArrow> lists(const char* format, const std::vector<Offset>& offsets,
                                  std::unique_ptr<OwnedArrow> child, const std::vector<int>& flags = {}) {
  auto out = arrow(format, static_cast<std::int64_t>(offsets.size()) - 1);
  add_valid(*out, flags);
  add_buffer(*out, offsets);
  out->parts.push_back(std::move(child));
  finish(*out);
  return out;
}

std::unique_ptr<OwnedArrow> rows_of(std::vector<std::unique_ptr<OwnedArrow>> columns, std::int64_t rows) {
  auto out = arrow("+s", rows);
  out->buffers.push_back(nullptr);
  out->parts = std::move(columns);
  finish(*out);
  return out;
}

Batch run(const Program& program, std::unique_ptr<OwnedArrow> column) {
  std::vector<std::unique_ptr<OwnedArrow>> columns;
  const std::int64_t count = column->array.length;
  columns.push_back(std::move(column));
  const auto rows = rows_of(std::move(columns), count);
  const std::vector<ArrowInput> places{{0, nullptr}};
  return program.run(rows->schema, rows->array, places);
}

Program hashes(Input input) { return Program({std::move(input)}, {ids_feature(0, {0}, {Hash{5, 0}})}, {}); }

Bags expected(const Program& program, OwnedColumn column) {
  return bags_of(program.run({&column.view}, column.view.rows));
}

}  // namespace

TEST(dictionaries) {
  const Program program = hashes(input("word", Wire::kBytes));
  const std::vector<std::string> words{"a", "longer than eight", "a", "", "b", "a", "b"};
  const Bags plain = expected(program, bytes_column(words));
  const std::vector<std::string> entries{"b", "a", "nobody has it", "", "longer than eight"};
  const std::vector<int> index{1, 4, 1, 3, 0, 1, 0};
  const auto with = [&]<class T>(const char* format, T) {
    std::vector<T> given(index.begin(), index.end());
    CHECK(bags_of(run(program, dictionary(numbers(format, given), text("u", entries)))) == plain);
    CHECK(bags_of(run(program, dictionary(numbers(format, given), text<std::int64_t>("Z", entries)))) == plain);
    given.insert(given.begin(), {T{99}, T{99}});  // before the offset
    CHECK(bags_of(run(program, dictionary(numbers(format, given, {}, 2), text("z", entries)))) == plain);
  };
  with("c", std::int8_t{}), with("C", std::uint8_t{}), with("s", std::int16_t{}), with("S", std::uint16_t{});
  with("i", std::int32_t{}), with("I", std::uint32_t{}), with("l", std::int64_t{}), with("L", std::uint64_t{});
}

TEST(nulls_of_indices_and_of_entries) {
  const Program program = hashes(input("word", Wire::kBytes));
  const std::vector<std::string> words{"a", "x", "b", "x", "a", "b", "x"};
  const Bags plain = expected(program, bytes_column(words).with_valid({1, 0, 1, 0, 1, 1, 0}));
  const auto index = [] { return numbers<std::int32_t>("i", {0, 77, 1, 2, 0, 1, -5}, {1, 0, 1, 1, 1, 1, 0}); };
  CHECK(bags_of(run(program, dictionary(index(), text("u", {"a", "b", "null"}, {1, 1, 0})))) == plain);
  std::vector<std::string> many{"a", "b", "null"};
  std::vector<int> valid{1, 1, 0};
  many.resize(20), valid.resize(20, 1);  // more entries than rows
  CHECK(bags_of(run(program, dictionary(index(), text("u", many, valid)))) == plain);
}

TEST(an_index_outside_is_refused) {
  const Program program = hashes(input("word", Wire::kBytes));
  for (const std::int32_t wrong : {-1, 2}) {
    CHECK_THROWS(run(program, dictionary(numbers<std::int32_t>("i", {0, 0, wrong}), text("u", {"a", "b"}))),
                 InvalidInput);
    CHECK_THROWS(run(program, dictionary(numbers<std::int32_t>("i", {wrong}), text("u", {"a", "b"}))), InvalidInput);
  }
}

TEST(lists_with_nulls) {
  Input tags = list_input("tags", Wire::kBytes);
  tags.fallback = std::vector<std::string>{"none"};
  const Program program = hashes(tags);
  const std::vector<std::string> words{"a", "b", "b", "c"};
  const Bags plain =
      expected(program, bytes_column(words).with_offsets({0, 2, 2, 3, 4, 4}).with_valid({1, 0, 1, 1, 1}));
  // The second row is null and has a value; a null inside is left out; the first value is no row's.
  const auto index = [] {
    return dictionary(numbers<std::int8_t>("c", {2, 0, 1, 0, 1, 2, 0}, {1, 1, 1, 1, 1, 1, 0}),
                      text("u", {"a", "b", "c"}));
  };
  CHECK(bags_of(run(program, lists<std::int32_t>("+l", {1, 3, 4, 5, 6, 7}, index(), {1, 0, 1, 1, 1}))) == plain);
  CHECK(bags_of(run(program, lists<std::int64_t>("+L", {1, 3, 4, 5, 6, 7}, index(), {1, 0, 1, 1, 1}))) == plain);
  CHECK_THROWS(run(program, lists<std::int32_t>("+l", {0, 9}, numbers<std::int64_t>("l", Ids(9)))), InvalidInput);
}

TEST(numbers_of_every_width) {
  const Program program({input("x", Wire::kInt64)}, {ids_feature(0, {0})}, {});
  const Bags plain =
      expected(program, ints_column({7, 0, 3, 9, 9, 1, 2, 3, 4, 5}).with_valid({1, 0, 1, 1, 1, 1, 1, 1, 1, 0}));
  const auto with = [&]<class T>(const char* format, T) {
    const std::vector<T> given{99, 7, 98, 3, 9, 9, 1, 2, 3, 4, 97};
    CHECK(bags_of(run(program, numbers(format, given, {1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 0}, 1))) == plain);
  };
  with("c", std::int8_t{}), with("C", std::uint8_t{}), with("s", std::int16_t{}), with("S", std::uint16_t{});
  with("i", std::int32_t{}), with("I", std::uint32_t{}), with("l", std::int64_t{}), with("L", std::uint64_t{});
}

TEST(other_types_are_no_columns) {
  const Program program({input("x", Wire::kInt64)}, {ids_feature(0, {0})}, {});
  CHECK_THROWS(run(program, numbers<std::int64_t>("tsu:", {1})), std::invalid_argument);
  CHECK_THROWS(run(program, numbers<double>("g", {1.0})), InvalidInput);
}

int main() { return check::run_all(); }
