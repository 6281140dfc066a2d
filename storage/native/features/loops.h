// Loops over spans that wide instructions speed up, compiled for each instruction set. All sets give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emberline::features {

inline constexpr int kSmallLogs = 1024;

// `to` overlaps no other argument.
struct Loops {
  // buckets 0: 63 bits.
  void (*hash)(const std::int64_t* from, std::int64_t size, std::uint64_t key, std::uint64_t buckets, std::int64_t* to);
  // How many boundaries are not above each value. boundaries: ascending, 2 * half of them, the last ones NaN; half is a
  // power of two, or 0. count: those that are numbers.
  void (*bucketise)(const double* from, std::int64_t size, const double* boundaries, std::size_t half,
                    std::size_t count, std::int64_t* to);
  // log1p, of 0 for what is less. known: those of 0 to kSmallLogs - 1: of counts they take a tenth of the time.
  void (*log)(const double* from, std::int64_t size, const double* known, double* to);
  void (*clip)(const double* from, std::int64_t size, double min, double max, double* to);
  void (*affine)(const double* from, std::int64_t size, double scale, double shift, double* to);
  void (*widen)(const float* from, std::int64_t size, double* to);
  // Of values that fit.
  void (*narrow)(const double* from, std::int64_t size, float* to);
  bool (*singles_have_nan)(const float* from, std::int64_t size);
  bool (*doubles_have_nan)(const double* from, std::int64_t size);
  // Whether all are finite as float32.
  bool (*singles_fit)(const float* from, std::int64_t size);
  bool (*doubles_fit)(const double* from, std::int64_t size);
};

// The loops for the instruction set in use (rows/isa.h).
const Loops& loops();

}  // namespace emberline::features
