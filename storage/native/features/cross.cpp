#include "features/cross.h"

#include <algorithm>

#include "features/hash.h"

namespace emberline::features {

// The hash of each value of an input, nulls left out: values are hashed once, not once a combination.
struct Cross::Hashes {
  const std::uint64_t* values = nullptr;
  const std::int64_t* offsets = nullptr;  // (rows + 1); nullptr: one value in each row
  std::int64_t rows = 0;

  std::int64_t place(std::int64_t row) const { return rows == 1 ? 0 : row; }
  std::int64_t begin(std::int64_t row) const { return offsets == nullptr ? place(row) : offsets[place(row)]; }
  std::int64_t end(std::int64_t row) const { return offsets == nullptr ? place(row) + 1 : offsets[place(row) + 1]; }
};

Cross::Hashes Cross::hash(Cells& cells, Arena& arena) const {
  cells.pack(arena);
  const std::int64_t count = cells.count();
  std::uint64_t* hashes = arena.take<std::uint64_t>(count);
  if (cells.type() == Type::kInt) {
    for (std::int64_t i = 0; i < count; ++i) hashes[i] = hash_int(cells.ints()[i], key_);
  } else {
    for (std::int64_t i = 0; i < count; ++i) hashes[i] = hash_bytes(cells.bytes()[i], key_);
  }
  if (cells.index != nullptr) {
    cells.set(reinterpret_cast<const std::int64_t*>(hashes));
    cells.spread(arena);
    hashes = const_cast<std::uint64_t*>(reinterpret_cast<const std::uint64_t*>(cells.ints()));
  }
  if (cells.null == nullptr && cells.is_fixed() && cells.width == 1) return {hashes, nullptr, cells.rows};
  std::int64_t* offsets = arena.take<std::int64_t>(cells.rows + 1);
  std::int64_t kept = 0;
  for (std::int64_t row = 0; row < cells.rows; ++row) {
    offsets[row] = kept;
    for (std::int64_t i = cells.begin(row); i < cells.end(row); ++i) {
      hashes[kept] = hashes[i];
      kept += cells.null == nullptr || cells.null[i] == 0;
    }
  }
  offsets[cells.rows] = kept;
  return {hashes, offsets, cells.rows};
}

// The product of the lengths; most_ + 1 stands for anything above most_, so that nothing overflows.
std::int64_t Cross::combinations(std::span<const Hashes> inputs, std::int64_t row) const {
  std::int64_t product = 1;
  bool above = false;
  for (const Hashes& input : inputs) {
    const std::int64_t length = input.end(row) - input.begin(row);
    if (length == 0) return 0;
    if (above) continue;
    above = length > most_ / product;
    product *= above ? 1 : length;
  }
  return above ? most_ + 1 : product;
}

void Cross::refuse(std::span<const std::string> names, std::int64_t row) const {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "'" : " x '") + name + "'";
  throw InvalidInput(names[0], "input '" + names[0] + "', row " + std::to_string(row) + ": the cross of " + all +
                                   " has more than " + std::to_string(most_) +
                                   " combinations, its `max`; send shorter lists or raise `max`");
}

// One value of each input: one id for each row.
Cells Cross::single(std::span<const Hashes> inputs, std::int64_t rows, Arena& arena) const {
  std::uint64_t* states = arena.take_filled<std::uint64_t>(rows, key_);
  for (const Hashes& input : inputs) {
    for (std::int64_t row = 0; row < rows; ++row) states[row] = absorb(states[row], input.values[input.place(row)]);
  }
  std::int64_t* ids = arena.take<std::int64_t>(rows);
  for (std::int64_t row = 0; row < rows; ++row) ids[row] = to_id(mix(states[row] + key_), buckets_);
  Cells out;
  out.set(ids);
  out.rows = rows;
  return out;
}

// Writes the states of all combinations of a row. A state is replaced by those that follow from it, the last one first,
// so none is overwritten before its turn.
void Cross::combine(std::span<const Hashes> inputs, std::int64_t row, std::uint64_t* states) const {
  std::int64_t count = 1;
  states[0] = key_;
  for (const Hashes& input : inputs) {
    const std::int64_t first = input.begin(row), length = input.end(row) - first;
    for (std::int64_t i = count; i-- > 0;) {
      const std::uint64_t state = states[i];
      for (std::int64_t k = 0; k < length; ++k) states[i * length + k] = absorb(state, input.values[first + k]);
    }
    count *= length;
  }
}

Cells Cross::apply(std::span<Cells> inputs, std::span<const std::string> names, Arena& arena) const {
  std::int64_t rows = 1;
  bool are_single = true;
  auto* hashes = arena.take<Hashes>(static_cast<std::int64_t>(inputs.size()));
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    hashes[k] = hash(inputs[k], arena);
    rows = hashes[k].rows == 1 ? rows : hashes[k].rows;
    are_single = are_single && hashes[k].offsets == nullptr;
  }
  const std::span<const Hashes> parts(hashes, inputs.size());
  if (are_single) return single(parts, rows, arena);
  std::int64_t* offsets = arena.take<std::int64_t>(rows + 1);
  offsets[0] = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t count = combinations(parts, row);
    if (count > most_) refuse(names, row);
    offsets[row + 1] = offsets[row] + count;
  }
  auto* states = arena.take<std::uint64_t>(offsets[rows]);
  for (std::int64_t row = 0; row < rows; ++row) {
    if (offsets[row + 1] > offsets[row]) combine(parts, row, states + offsets[row]);
  }
  std::int64_t* ids = arena.take<std::int64_t>(offsets[rows]);
  for (std::int64_t i = 0; i < offsets[rows]; ++i) ids[i] = to_id(mix(states[i] + key_), buckets_);
  Cells out;
  out.set(ids);
  out.rows = rows;
  out.offsets = offsets;
  return out;
}

}  // namespace emberline::features
