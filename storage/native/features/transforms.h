// The transforms, each over the cells of a whole batch. docs/features.md says what each one computes.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "features/column.h"
#include "features/hash.h"

namespace emberline::features {

struct Hash {
  std::uint64_t key = 0;
  std::uint64_t buckets = 0;  // 0: 63 bits
  void apply(Cells& cells) const;
};

// Positions of known values. What is unknown becomes null, or the id `unknown`.
class Vocabulary {
 public:
  explicit Vocabulary(const std::vector<std::string>& values, bool keep_unknown, std::int64_t unknown);
  explicit Vocabulary(const std::vector<std::int64_t>& values, bool keep_unknown, std::int64_t unknown);
  void apply(Cells& cells) const;

 private:
  struct BytesHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view bytes) const { return hash_bytes(bytes, kStep); }
  };
  struct IntHash {
    std::size_t operator()(std::int64_t value) const { return hash_int(value, kStep); }
  };
  std::unordered_map<std::string, std::int64_t, BytesHash, std::equal_to<>> bytes_;
  std::unordered_map<std::int64_t, std::int64_t, IntHash> ints_;
  bool keep_unknown_;
  std::int64_t unknown_;
};

struct Bucketise {
  std::vector<double> boundaries;
  void apply(Cells& cells) const;
};

struct Log {
  void apply(Cells& cells) const;
};

struct Clip {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  void apply(Cells& cells) const;
};

struct Affine {
  double scale = 1.0;
  double shift = 0.0;
  void apply(Cells& cells) const;
};

// The columns [start, stop) of rows of fixed width.
struct Slice {
  std::int64_t start = 0;
  std::int64_t stop = 1;
  void apply(Cells& cells) const;
};

struct Truncate {
  std::int64_t length = 0;
  bool keep_last = false;
  void apply(Cells& cells) const;
};

struct Pad {
  std::int64_t length = 0;
  std::variant<std::int64_t, double, std::string> value;
  void apply(Cells& cells) const;
};

using Transform = std::variant<Hash, Vocabulary, Bucketise, Log, Clip, Affine, Slice, Truncate, Pad>;

// Makes one id for each combination of the inputs' values, the last varying fastest; null values take part in none.
class Cross {
 public:
  // max: combinations of a row, at least 1.
  Cross(std::uint64_t seed_key, std::uint64_t bucket_count, std::int64_t max_combinations)
      : key(seed_key), buckets(bucket_count), max(max_combinations) {}
  // names: of the inputs, for the message of the InvalidInput that a row with more than `max` combinations throws.
  Cells apply(const std::vector<Cells>& inputs, const std::vector<std::string>& names) const;

 private:
  template <class Range>
  std::int64_t combinations(std::size_t inputs, Range&& range) const;
  [[noreturn]] void refuse(const std::vector<std::string>& names, std::int64_t row) const;

  std::uint64_t key;
  std::uint64_t buckets;
  std::int64_t max;
};

}  // namespace emberline::features
