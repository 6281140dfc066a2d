// One id for each combination of the values of several inputs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "features/cells.h"

namespace emberline::features {

// The last input varies fastest; null values take part in no combination.
class Cross {
 public:
  // most: combinations of a row, at least 1.
  Cross(std::uint64_t seed_key, std::uint64_t bucket_count, std::int64_t most)
      : key_(seed_key), buckets_(bucket_count), most_(most) {}
  // names: of the inputs, for the message of the InvalidInput that a row with more than `most` combinations throws.
  Cells apply(std::span<Cells> inputs, std::span<const std::string> names, Arena& arena) const;

 private:
  struct Hashes;

  Hashes hash(Cells& cells, Arena& arena) const;
  std::int64_t combinations(std::span<const Hashes> inputs, std::int64_t row) const;
  Cells single(std::span<const Hashes> inputs, std::int64_t rows, Arena& arena) const;
  void combine(std::span<const Hashes> inputs, std::int64_t row, std::uint64_t* states) const;
  [[noreturn]] void refuse(std::span<const std::string> names, std::int64_t row) const;

  std::uint64_t key_;
  std::uint64_t buckets_;
  std::int64_t most_;
};

}  // namespace emberline::features
