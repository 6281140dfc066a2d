// Positions of known values, in a table of their own: one probe finds most of them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "features/cells.h"

namespace emberline::features {

// What is unknown becomes null, or the id `unknown`.
class Vocabulary {
 public:
  Vocabulary(const std::vector<std::string>& values, bool keep_unknown, std::int64_t unknown);
  Vocabulary(const std::vector<std::int64_t>& values, bool keep_unknown, std::int64_t unknown);
  void apply(Cells& cells, Arena& arena) const;

 private:
  // Of a string the hash stands in `key`, and the string at its position in strings_.
  struct Entry {
    std::uint64_t key = 0;
    std::int64_t position = kEmpty;
  };
  static constexpr std::int64_t kEmpty = -1;

  static std::uint64_t key_of(std::int64_t value) { return static_cast<std::uint64_t>(value); }
  static std::uint64_t key_of(std::string_view bytes);
  bool is_at(std::int64_t position, std::string_view bytes) const {
    return strings_[static_cast<std::size_t>(position)] == bytes;
  }
  bool is_at(std::int64_t, std::int64_t) const { return true; }  // its key is all of it

  template <class Value>
  const Entry& find(const Value& value) const;
  template <class Given, class Value>
  void fill(const std::vector<Given>& values);
  template <class Value>
  void place(const Value* values, Cells& cells, Arena& arena) const;

  std::vector<Entry> entries_;  // a power of two of them, at most half of them in use
  std::vector<std::string> strings_;
  bool keep_unknown_;
  std::int64_t unknown_;
};

}  // namespace emberline::features
