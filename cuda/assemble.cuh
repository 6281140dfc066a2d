// Which bytes of a batch's packed inputs go where in the tensors of a CUDA graph, shared by host and device.
//
// Staging, made by the host; the rows' users and every section begin at a multiple of 16:
//   header       int64: stamp, batch, users, where the rows' users begin, where section 0 begins, section 1, ...
//   rows' users  int32 for each row of the batch; read only when users > 0
//   section      its rows, one after the other: `users` of them when it is the user's side and users > 0, else `batch`
// Table, (inputs, 4) int64: where the input's tensor begins in the target (a multiple of 16), bytes of a row, log2 of
// the unit, 1 for the user's side. A unit is what is moved at once: the largest power of two that divides the row, at
// most 16 bytes.
//
// Rows of a tensor from `batch` on are zeros. A batch of more rows than the tensor has is cut off.
#pragma once

#include "host_device.cuh"

namespace emberline {

constexpr int kStampWord = 0;
constexpr int kBatchWord = 1;
constexpr int kUsersWord = 2;
constexpr int kUserOfRowWord = 3;
constexpr int kSectionWord = 4;
constexpr int kTableWords = 4;
constexpr int64_t kZeros = -1;

struct alignas(16) Unit16 {
  uint64_t low, high;
};

// One input of a batch. Lengths are in units.
struct PackedInput {
  const uint8_t* section;
  uint8_t* tensor;
  const int* user_of_row;  // null where row r of the tensor is row r of the section
  int64_t users;
  int64_t row_length;
  int64_t filled_length;  // zeros begin here
  int64_t length;
  int unit_log2;
};

EMBERLINE_HD PackedInput packed_input(const uint8_t* staging, const int64_t* table, int64_t number, uint8_t* target,
                                      int64_t rows) {
  const int64_t* header = reinterpret_cast<const int64_t*>(staging);
  const int64_t* entry = table + number * kTableWords;
  const bool has_users = header[kUsersWord] > 0 && entry[3] != 0;
  const int64_t batch = header[kBatchWord];
  const int64_t filled = batch < 0 ? 0 : batch < rows ? batch : rows;
  PackedInput input;
  input.section = staging + header[kSectionWord + number];
  input.tensor = target + entry[0];
  input.user_of_row = has_users ? reinterpret_cast<const int*>(staging + header[kUserOfRowWord]) : nullptr;
  input.users = header[kUsersWord];
  input.unit_log2 = static_cast<int>(entry[2]);
  input.row_length = entry[1] >> input.unit_log2;
  input.filled_length = filled * input.row_length;
  input.length = rows * input.row_length;
  return input;
}

// The unit of the section that a unit of the tensor is copied from, or kZeros.
EMBERLINE_HD int64_t source_unit(const PackedInput& input, int64_t unit) {
  if (unit >= input.filled_length) return kZeros;
  if (input.user_of_row == nullptr) return unit;
  // Unsigned: a compiler then has a short way for what fits into 32 bits, which is nearly always.
  const int64_t row = static_cast<int64_t>(static_cast<uint64_t>(unit) / static_cast<uint64_t>(input.row_length));
  const int64_t user = input.user_of_row[row];
  // A row of nobody's would be our own bug: it reads zeros, never the memory of somebody else.
  if (user < 0 || user >= input.users) return kZeros;
  return user * input.row_length + (unit - row * input.row_length);
}

template <class Unit>
EMBERLINE_HD void move_units(const PackedInput& input, int64_t first, int64_t step) {
  const Unit* section = reinterpret_cast<const Unit*>(input.section);
  Unit* tensor = reinterpret_cast<Unit*>(input.tensor);
  for (int64_t unit = first; unit < input.length; unit += step) {
    const int64_t source = source_unit(input, unit);
    tensor[unit] = source == kZeros ? Unit{} : section[source];
  }
}

// What one thread does for one input: its units are first, first + step, ... The thread whose `first` is 0 at input 0
// also copies the stamp. `inputs` is 0 where a graph has none; there is a thread for input 0 all the same.
EMBERLINE_HD void assemble_share(const uint8_t* staging, const int64_t* table, int64_t inputs, uint8_t* target,
                                 int64_t* stamp, int64_t rows, int64_t number, int64_t first, int64_t step) {
  if (number == 0 && first == 0) *stamp = reinterpret_cast<const int64_t*>(staging)[kStampWord];
  if (number >= inputs) return;
  const PackedInput input = packed_input(staging, table, number, target, rows);
  switch (input.unit_log2) {
    case 4: return move_units<Unit16>(input, first, step);
    case 3: return move_units<uint64_t>(input, first, step);
    case 2: return move_units<uint32_t>(input, first, step);
    case 1: return move_units<unsigned short>(input, first, step);
    default: return move_units<uint8_t>(input, first, step);
  }
}

}  // namespace emberline
