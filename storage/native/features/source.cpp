#include "features/source.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "features/program.h"

namespace emberline::features {

namespace {

std::int64_t item_bytes(Wire wire) {
  switch (wire) {
    case Wire::kInt32:
    case Wire::kFp32: return 4;
    case Wire::kBool: return 1;
    case Wire::kBytes: return sizeof(std::string_view);
    default: return 8;
  }
}

// Copies a few bytes without a call: single rows are joined by the hundred.
void copy_bytes(std::byte* to, const void* from, std::int64_t bytes) {
  switch (bytes) {
    case 0: break;
    case 4: std::memcpy(to, from, 4); break;
    case 8: std::memcpy(to, from, 8); break;
    default: std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
}

// Numbers in the caller's memory, or a copy where they lie across the borders of numbers. Never null.
const void* aligned(const void* values, std::int64_t bytes, Wire wire, Arena& arena) {
  if (bytes > 0 && reinterpret_cast<std::uintptr_t>(values) % static_cast<std::uintptr_t>(item_bytes(wire)) == 0)
    return values;
  std::byte* copy = arena.take<std::byte>(bytes);
  copy_bytes(copy, values, bytes);
  return copy;
}

void put_views(const ColumnView& column, std::string_view* to) {
  for (std::int64_t i = 0; i < column.count; ++i) {
    to[i] = {column.data + column.starts[i], static_cast<std::size_t>(column.ends[i] - column.starts[i])};
  }
}

// Calls with the column of each request, and for how many rows each of its rows stands.
template <class Call>
void each_column(std::span<const Request> requests, std::size_t input, Call&& call) {
  for (const Request& request : requests) {
    const ColumnView& column = *request.columns[input];
    call(column, column.rows == request.batch ? 1 : request.batch);
  }
}

const void* join_values(std::span<const Request> requests, std::size_t input, std::int64_t count, Arena& arena) {
  const Wire wire = requests[0].columns[input]->wire;
  const std::int64_t size = item_bytes(wire);
  std::byte* const values = arena.take<std::byte>(count * size);
  std::byte* to = values;
  each_column(requests, input, [&](const ColumnView& column, std::int64_t times) {
    const std::int64_t bytes = column.count * size;
    for (std::int64_t time = 0; time < times; ++time, to += bytes) {
      if (wire == Wire::kBytes) {
        put_views(column, reinterpret_cast<std::string_view*>(to));
      } else {
        copy_bytes(to, column.values, bytes);
      }
    }
  });
  return values;
}

const std::int64_t* join_offsets(std::span<const Request> requests, std::size_t input, std::int64_t rows,
                                 Arena& arena) {
  std::int64_t* const offsets = arena.take<std::int64_t>(rows + 1);
  std::int64_t* to = offsets;
  *to = 0;
  each_column(requests, input, [&](const ColumnView& column, std::int64_t times) {
    for (std::int64_t time = 0; time < times; ++time) {
      const std::int64_t before = *to;
      for (std::int64_t row = 1; row <= column.rows; ++row) to[row] = before + column.offsets[row];
      to += column.rows;
    }
  });
  return offsets;
}

const std::uint8_t* join_valid(std::span<const Request> requests, std::size_t input, std::int64_t count, Arena& arena) {
  std::uint8_t* const valid = arena.take_filled<std::uint8_t>(count, 1);
  std::uint8_t* to = valid;
  each_column(requests, input, [&](const ColumnView& column, std::int64_t times) {
    const std::int64_t flags = column.offsets != nullptr ? column.rows : column.count;
    for (std::int64_t time = 0; time < times; ++time, to += flags) {
      if (column.valid != nullptr) std::copy_n(column.valid, flags, to);
    }
  });
  return valid;
}

// Adds the rows of a request. Refuses before the sum could overflow.
void add_rows(std::int64_t& rows, std::int64_t batch) {
  const bool is_wrong = batch < 0 || batch > kMaxBatch;
  if (is_wrong || rows + batch > kMaxBatch) {
    throw InvalidInput("", "a batch of " + std::to_string(is_wrong ? batch : rows + batch) + " rows; expected 0 to " +
                               std::to_string(kMaxBatch));
  }
  rows += batch;
}

}  // namespace

WholeColumn whole_column(const ColumnView& column, Arena& arena) {
  WholeColumn out{column.wire, column.rows, column.count, nullptr, column.offsets, column.valid};
  if (column.wire == Wire::kBytes) {
    auto* views = arena.take<std::string_view>(column.count);
    put_views(column, views);
    out.values = views;
  } else {
    out.values = aligned(column.values, column.count * item_bytes(column.wire), column.wire, arena);
  }
  return out;
}

RequestSource::RequestSource(std::span<const Request> requests, std::size_t inputs) : requests_(requests) {
  for (const Request& request : requests) {
    if (request.columns.size() != inputs) throw std::invalid_argument("one column an input is expected");
    if (!are_alike(requests[0], request)) throw std::invalid_argument("requests of other inputs, or in other forms");
    add_rows(batch_, request.batch);
  }
}

bool RequestSource::are_alike(const Request& one, const Request& other) {
  const auto same = [](const ColumnView* a, const ColumnView* b) {
    if (a == nullptr || b == nullptr) return a == b;
    return a->wire == b->wire && a->width == b->width && (a->offsets == nullptr) == (b->offsets == nullptr);
  };
  return std::equal(one.columns.begin(), one.columns.end(), other.columns.begin(), other.columns.end(), same);
}

void RequestSource::check(std::size_t input, const Input& spec) const {
  for (const Request& request : requests_) spec.check(*request.columns[input], request.batch);
}

WholeColumn RequestSource::column(std::size_t input, Arena& arena) const {
  const ColumnView& first = *requests_[0].columns[input];
  if (requests_.size() == 1) return whole_column(first, arena);
  std::int64_t count = 0;
  bool has_valid = false;
  each_column(requests_, input, [&](const ColumnView& column, std::int64_t times) {
    count += column.count * times;
    has_valid = has_valid || column.valid != nullptr;
  });
  WholeColumn out{first.wire, batch_, count, join_values(requests_, input, count, arena), nullptr, nullptr};
  const bool is_list = first.offsets != nullptr;
  if (is_list) out.offsets = join_offsets(requests_, input, batch_, arena);
  if (has_valid) out.valid = join_valid(requests_, input, is_list ? batch_ : count, arena);
  return out;
}

BlockLayout::BlockLayout(const std::vector<Column>& columns, std::size_t inputs) : places_(inputs) {
  for (const Column& column : columns) {
    if (column.input >= inputs || places_[column.input].width != 0) {
      throw std::invalid_argument("a layout with an input that is not there, or there twice");
    }
    if (column.wire == Wire::kBytes || column.width < 1 || column.width > (std::int64_t{1} << 20)) {
      throw std::invalid_argument("a layout has numbers of a fixed width");
    }
    const std::int64_t bytes = column.width * item_bytes(column.wire);
    places_[column.input] = {column.wire, column.width, bytes, row_bytes_};
    row_bytes_ += bytes;
  }
}

BlockSource::BlockSource(const BlockLayout& layout, std::span<const Block> blocks) : layout_(layout), blocks_(blocks) {
  for (const Block& block : blocks) {
    add_rows(batch_, block.batch);
    const std::int64_t expected = block.batch * layout.row_bytes();
    if (block.size != expected) {
      throw InvalidInput("", std::to_string(block.size) + " bytes of " + std::to_string(block.batch) + " rows, " +
                                 std::to_string(expected) + " were expected");
    }
  }
}

void BlockSource::check(std::size_t input, const Input& spec) const {
  const BlockLayout::Place& place = layout_.places_[input];
  ColumnView column;
  column.wire = place.wire;
  column.rows = batch_;
  column.width = place.width;
  column.count = batch_ * place.width;
  spec.check(column, batch_);
}

WholeColumn BlockSource::column(std::size_t input, Arena& arena) const {
  const BlockLayout::Place& place = layout_.places_[input];
  WholeColumn out{place.wire, batch_, batch_ * place.width, nullptr, nullptr, nullptr};
  const auto part = [&](const Block& block) { return block.data + block.batch * place.before; };
  if (blocks_.size() == 1) {
    out.values = aligned(part(blocks_[0]), batch_ * place.row_bytes, place.wire, arena);
    return out;
  }
  std::byte* to = arena.take<std::byte>(batch_ * place.row_bytes);
  out.values = to;
  for (const Block& block : blocks_) {
    const std::int64_t bytes = block.batch * place.row_bytes;
    copy_bytes(to, part(block), bytes);
    to += bytes;
  }
  return out;
}

}  // namespace emberline::features
