// The transforms, each over the cells of a whole batch. docs/features.md says what each one computes. What they make
// lies in the arena; what they are given stays as it is.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "features/cells.h"
#include "features/vocabulary.h"

namespace emberline::features {

struct Hash {
  std::uint64_t key = 0;
  std::uint64_t buckets = 0;  // 0: 63 bits
  void apply(Cells& cells, Arena& arena) const;
};

// Rounds down, as Python does: -1 by 4 is -1.
struct FloorDivide {
  std::int64_t divisor = 1;  // 1 or more
  void apply(Cells& cells, Arena& arena) const;
};

// What FloorDivide leaves over, 0 to divisor - 1.
struct Modulo {
  std::int64_t divisor = 1;  // 1 or more
  void apply(Cells& cells, Arena& arena) const;
};

// Adds one amount to every value, or to each column of rows of fixed width its own. Wraps around as int64 do.
struct Add {
  std::vector<std::int64_t> amounts;  // one, or as many as a row has values
  void apply(Cells& cells, Arena& arena) const;
};

// Wraps around as int64 do.
struct Multiply {
  std::int64_t factor = 1;
  void apply(Cells& cells, Arena& arena) const;
};

// Values from low to high become `by`; if `outside`, those below low and above high do.
struct Replace {
  std::int64_t low = std::numeric_limits<std::int64_t>::min();
  std::int64_t high = std::numeric_limits<std::int64_t>::max();
  bool outside = false;
  std::int64_t by = 0;
  void apply(Cells& cells, Arena& arena) const;
};

// Floats without what stands behind the point. What no int64 holds becomes the lowest one.
struct Integer {
  void apply(Cells& cells, Arena& arena) const;
};

class Bucketise {
 public:
  // boundaries: ascending.
  explicit Bucketise(const std::vector<double>& boundaries);
  void apply(Cells& cells, Arena& arena) const;

 private:
  std::size_t count_;
  std::size_t half_;                // of a power of two that is greater than count_
  std::vector<double> boundaries_;  // filled up with NaN, which no value reaches
};

struct Log {
  void apply(Cells& cells, Arena& arena) const;
};

struct Clip {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  void apply(Cells& cells, Arena& arena) const;
};

struct Affine {
  double scale = 1.0;
  double shift = 0.0;
  void apply(Cells& cells, Arena& arena) const;
};

// (x - mean) / deviation.
struct Standardise {
  double mean = 0.0;
  double deviation = 1.0;  // above 0
  void apply(Cells& cells, Arena& arena) const;
};

// The hour of the day, the day of the week, and other parts of a time, for times before 1970 too.
struct PartOfWeek {
  std::int64_t per_second = 1;  // of the values
  std::int64_t shift = 0;       // seconds that are added, 0 or more, less than a week
  std::int64_t period = 1;      // seconds after which the parts begin again; a week is a multiple of it
  std::int64_t part = 1;        // seconds of a part
  void apply(Cells& cells, Arena& arena) const;
};

// 1 for a null and 0 for a value, in rows of fixed width.
struct IsNull {
  void apply(Cells& cells, Arena& arena) const;
};

// Nulls become the value.
struct Fill {
  std::variant<std::int64_t, double, std::string> value;
  void apply(Cells& cells, Arena& arena) const;
};

// Cuts BYTES at each delimiter. Empty pieces are left out, and a null has none. A row with more than `most` pieces is
// refused with the name of the input.
struct Split {
  std::string delimiter;  // not empty
  std::int64_t most = 1;
  std::string input;
  void apply(Cells& cells, Arena& arena) const;
};

// The columns [start, stop) of rows of fixed width.
struct Slice {
  std::int64_t start = 0;
  std::int64_t stop = 1;
  void apply(Cells& cells, Arena& arena) const;
};

struct Truncate {
  std::int64_t length = 0;
  bool keep_last = false;
  void apply(Cells& cells, Arena& arena) const;
};

struct Pad {
  std::int64_t length = 0;
  std::variant<std::int64_t, double, std::string> value;
  void apply(Cells& cells, Arena& arena) const;
};

using Transform = std::variant<Hash, FloorDivide, Modulo, Add, Multiply, Replace, Integer, Vocabulary, Bucketise, Log,
                               Clip, Affine, Standardise, PartOfWeek, IsNull, Fill, Split, Slice, Truncate, Pad>;

}  // namespace emberline::features
