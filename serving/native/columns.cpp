#include "columns.h"

#include <algorithm>
#include <cstring>

namespace emberline::front {

namespace {

constexpr std::size_t kAlignment = 8;

std::size_t padded(std::size_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

// Whether all columns are arrays of numbers with a row for each row of the request, which are not padded.
bool is_plain(const InferRequest& request) {
  return std::all_of(request.columns.begin(), request.columns.end(),
                     [](const ColumnPart& part) { return part.form == 0; });
}

std::size_t value_bytes(const ColumnPart& part) { return static_cast<std::size_t>(kWireBytes[part.dtype]); }

// Values that tell which values are there: one for a list, otherwise one for each value.
std::int64_t flags_of(const ColumnPart& part) { return (part.form & kList) != 0 ? part.rows : part.rows * part.width; }

// Any byte but 0 is true.
char* write_bools(char* out, const char* values, std::int64_t count) {
  return std::transform(values, values + count, out, [](char byte) { return static_cast<char>(byte != 0); });
}

// Writes the values that are kept.
char* write_values(char* out, const InferRequest& request, const ColumnPart& part) {
  const char* values = request.data(part.values);
  char* const begin = out;
  if (part.count == part.rows * part.width) {
    std::memcpy(out, values, part.values.size);
    out += part.values.size;
  } else {
    const char* lengths = request.data(part.lengths);
    const std::size_t bytes = value_bytes(part), row_bytes = static_cast<std::size_t>(part.width) * bytes;
    for (std::int64_t row = 0; row < part.rows; ++row, values += row_bytes) {
      const std::size_t size = static_cast<std::size_t>(length_at(lengths, part.lengths_dtype, row)) * bytes;
      std::memcpy(out, values, size);
      out += size;
    }
  }
  if (part.dtype == kBool) write_bools(begin, begin, part.count);
  return out;
}

// Writes where each row of a list begins, after `at` values of the rows before.
char* write_offsets(char* out, const InferRequest& request, const ColumnPart& part, std::int64_t& at) {
  const char* lengths = request.data(part.lengths);
  for (std::int64_t row = 0; row < part.rows; ++row, out += sizeof at) {
    at += part.lengths_dtype == kNoWire ? part.width : length_at(lengths, part.lengths_dtype, row);
    std::memcpy(out, &at, sizeof at);
  }
  return out;
}

}  // namespace

std::int64_t length_at(const char* lengths, std::uint8_t dtype, std::int64_t position) {
  if (dtype == kInt32) {
    std::int32_t value = 0;
    std::memcpy(&value, lengths + position * static_cast<std::int64_t>(sizeof value), sizeof value);
    return value;
  }
  std::int64_t value = 0;
  std::memcpy(&value, lengths + position * static_cast<std::int64_t>(sizeof value), sizeof value);
  return value;
}

bool can_join(const InferRequest& a, const InferRequest& b) {
  return a.model == b.model && !a.has_one_row && !b.has_one_row &&
         std::equal(a.columns.begin(), a.columns.end(), b.columns.begin(), b.columns.end(),
                    [](const ColumnPart& x, const ColumnPart& y) {
                      return x.place == y.place && x.dtype == y.dtype && x.form == y.form;
                    });
}

std::size_t joined_bytes(const InferRequests& requests) {
  const InferRequest& first = *requests.front();
  const bool pads = !is_plain(first);
  std::size_t bytes = 0;
  for (std::size_t column = 0; column < first.columns.size(); ++column) {
    std::size_t rows = 0, values = 0, flags = 0;
    for (const auto& request : requests) {
      const ColumnPart& part = request->columns[column];
      rows += static_cast<std::size_t>(part.rows);
      values += static_cast<std::size_t>(part.count) * value_bytes(part);
      flags += static_cast<std::size_t>(flags_of(part));
    }
    const std::uint8_t form = first.columns[column].form;
    bytes += pads ? padded(values) : values;
    if ((form & kList) != 0) bytes += (rows + 1) * sizeof(std::int64_t);
    if ((form & kHasValid) != 0) bytes += padded(flags);
  }
  return bytes;
}

void join_columns(const InferRequests& requests, char* out) {
  const InferRequest& first = *requests.front();
  const bool pads = !is_plain(first);
  const char* begin = out;
  const auto pad = [&] {
    if (!pads) return;
    const auto size = static_cast<std::size_t>(out - begin);
    std::memset(out, 0, padded(size) - size);
    out += padded(size) - size;
  };
  for (std::size_t column = 0; column < first.columns.size(); ++column) {
    const std::uint8_t form = first.columns[column].form;
    if ((form & kList) != 0) {
      std::int64_t at = 0;
      std::memcpy(out, &at, sizeof at);
      out += sizeof at;
      for (const auto& request : requests) out = write_offsets(out, *request, request->columns[column], at);
    }
    for (const auto& request : requests) out = write_values(out, *request, request->columns[column]);
    pad();
    if ((form & kHasValid) == 0) continue;
    for (const auto& request : requests) {
      const ColumnPart& part = request->columns[column];
      out = write_bools(out, request->data(part.valid), flags_of(part));
    }
    pad();
  }
}

}  // namespace emberline::front
