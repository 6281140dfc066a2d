#include "features/input.h"

namespace emberline::features {

void Input::refuse(const std::string& problem) const { throw InvalidInput(name, "input '" + name + "'" + problem); }

void Input::check(const ColumnView& column, std::int64_t batch) const {
  check_form(column, batch);
  if (column.wire != Wire::kBytes) return;
  for (std::int64_t i = 0; i < column.count; ++i) {
    if (column.starts[i] < 0 || column.ends[i] < column.starts[i] || column.ends[i] > column.data_size) {
      refuse(", value " + std::to_string(i) + ": its bytes do not lie in the buffer of " +
             std::to_string(column.data_size));
    }
  }
}

void Input::check_form(const ColumnView& column, std::int64_t batch) const {
  const auto text = [](std::int64_t number) { return std::to_string(number); };
  const bool listed = column.offsets != nullptr;
  if (!accepts(wire, column.wire)) {
    refuse(std::string(": expected ") + wire_name(wire) + ", got " + wire_name(column.wire));
  }
  if (listed != is_list) {
    refuse(is_list ? ": expected a list, got a column of fixed width" : ": expected a fixed width, got a list");
  }
  if (column.rows < 0) refuse(": negative number of rows");
  if (column.rows != batch) {
    if (column.rows != 1) refuse(": has " + text(column.rows) + " rows, the batch has " + text(batch));
    if (!user_side) {
      refuse(": has 1 row, the batch has " + text(batch) + "; only inputs of side 'user' are broadcast over the batch");
    }
  }
  if (!is_list) {
    if (column.width != width) refuse(": expected width " + text(width) + ", got " + text(column.width));
    // rows is the batch or 1, and both it and width are small enough that their product cannot overflow
    if (column.count != column.rows * width) {
      refuse(": " + text(column.count) + " values do not fill " + text(column.rows) + " rows of width " + text(width));
    }
  } else {
    if (column.offsets_count != column.rows + 1) {
      refuse(": " + text(column.offsets_count) + " offsets, expected " + text(column.rows + 1));
    }
    if (column.offsets[0] != 0) refuse(": the offsets start at " + text(column.offsets[0]) + ", expected 0");
    for (std::int64_t row = 0; row < column.rows; ++row) {
      const std::int64_t begin = column.offsets[row], end = column.offsets[row + 1];
      if (end < begin) refuse(", row " + text(row) + ": negative length");
      if (end > column.count) {
        refuse(", row " + text(row) + ": the lengths add up to more than the " + text(column.count) + " values given");
      }
      if (end - begin > max_length) {
        refuse(", row " + text(row) + ": has " + text(end - begin) + " values, max_length is " + text(max_length) +
               "; send fewer, or raise max_length and cut with the truncate transform");
      }
    }
    if (column.offsets[column.rows] != column.count) {
      refuse(": the lengths add up to " + text(column.offsets[column.rows]) + ", but " + text(column.count) +
             " values were given");
    }
  }
  if (column.valid != nullptr && column.valid_count != (is_list ? column.rows : column.count)) {
    refuse(": " + text(column.valid_count) + " valid flags, expected " + text(is_list ? column.rows : column.count));
  }
}

}  // namespace emberline::features
