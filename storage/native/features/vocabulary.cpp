#include "features/vocabulary.h"

#include <bit>

#include "features/hash.h"

namespace emberline::features {

Vocabulary::Vocabulary(const std::vector<std::string>& values, bool keep_unknown, std::int64_t unknown)
    : keep_unknown_(keep_unknown), unknown_(unknown) {
  strings_.reserve(values.size());
  fill<std::string, std::string_view>(values);
}

Vocabulary::Vocabulary(const std::vector<std::int64_t>& values, bool keep_unknown, std::int64_t unknown)
    : keep_unknown_(keep_unknown), unknown_(unknown) {
  fill<std::int64_t, std::int64_t>(values);
}

std::uint64_t Vocabulary::key_of(std::string_view bytes) { return hash_bytes(bytes, kStep); }

// Returns the entry of a value, or the empty one where it would stand.
template <class Value>
const Vocabulary::Entry& Vocabulary::find(const Value& value) const {
  const std::uint64_t key = key_of(value);
  const std::size_t last = entries_.size() - 1;
  for (std::size_t at = mix(key) & last;; at = (at + 1) & last) {
    const Entry& entry = entries_[at];
    if (entry.position == kEmpty || (entry.key == key && is_at(entry.position, value))) return entry;
  }
}

template <class Given, class Value>
void Vocabulary::fill(const std::vector<Given>& values) {
  entries_.resize(std::bit_ceil(2 * values.size() + 1));
  std::int64_t count = 0;
  for (const Given& value : values) {
    Entry& entry = const_cast<Entry&>(find(Value(value)));
    if (entry.position != kEmpty) continue;
    entry = {key_of(Value(value)), count++};
    if constexpr (std::is_same_v<Given, std::string>) strings_.push_back(value);
  }
}

template <class Value>
void Vocabulary::place(const Value* values, Cells& cells, Arena& arena) const {
  const std::int64_t size = cells.count();
  const bool had_nulls = cells.null != nullptr;
  std::uint8_t* null = keep_unknown_ ? nullptr : cells.own_nulls(arena);
  std::int64_t* positions = arena.take<std::int64_t>(size);
  bool has_unknown = false;
  for (std::int64_t i = 0; i < size; ++i) {
    positions[i] = find(values[i]).position;
    if (positions[i] != kEmpty) continue;
    positions[i] = unknown_;
    if (!keep_unknown_) null[i] = 1;
    has_unknown = true;
  }
  if (!keep_unknown_ && !had_nulls && !has_unknown) cells.null = nullptr;
  cells.set(positions);
}

void Vocabulary::apply(Cells& cells, Arena& arena) const {
  cells.pack(arena);
  if (cells.type() == Type::kInt) {
    place(cells.ints(), cells, arena);
  } else {
    place(cells.bytes(), cells, arena);
  }
}

}  // namespace emberline::features
