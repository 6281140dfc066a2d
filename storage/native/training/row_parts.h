// The ids of a table's rows in parts by their hash, so that all rows can be looked at a bounded piece at a time, in an
// order that follows from the ids alone.
//
// Rows that go are not taken out at once: a list is tidied when it is read, and before it grows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "bucket.cuh"

namespace emberline {

class RowParts {
 public:
  static constexpr std::uint32_t kParts = 1024;

  RowParts() : parts_(kParts) {}

  static std::uint32_t part_of(std::int64_t id) { return static_cast<std::uint32_t>(mix_id(id) >> 54); }

  // has_row(id): whether it still has one.
  template <class HasRow>
  void add(std::int64_t id, HasRow has_row) {
    Part& part = parts_[part_of(id)];
    if (part.ids.size() == part.ids.capacity()) {
      tidy(part, has_row);
      part.ids.reserve(std::max<std::size_t>(4, part.ids.size() + part.ids.size() / 2));
    }
    part.ids.push_back(id);
  }

  // The ids of a part, ascending, each once. They stay as they are until a row is added.
  template <class HasRow>
  const std::vector<std::int64_t>& ids(std::uint32_t part, HasRow has_row) {
    tidy(parts_[part], has_row);
    return parts_[part].ids;
  }

  std::size_t bytes() const {
    std::size_t total = parts_.size() * sizeof(Part);
    for (const Part& part : parts_) total += part.ids.capacity() * sizeof(std::int64_t);
    return total;
  }

 private:
  struct Part {
    std::vector<std::int64_t> ids;
    std::size_t sorted = 0;  // of the first so many ids, each comes once, and they ascend
  };

  template <class HasRow>
  static void tidy(Part& part, HasRow has_row) {
    std::vector<std::int64_t>& ids = part.ids;
    const auto middle = ids.begin() + static_cast<std::ptrdiff_t>(part.sorted);
    std::sort(middle, ids.end());
    std::inplace_merge(ids.begin(), middle, ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    std::erase_if(ids, [&](std::int64_t id) { return !has_row(id); });
    part.sorted = ids.size();
  }

  std::vector<Part> parts_;
};

}  // namespace emberline
