#include "rows/pooling.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace emberline {
namespace {

[[noreturn]] void refuse(const std::int64_t* offsets, std::size_t batch, std::size_t values, const std::string& name) {
  if (offsets[0] != 0) throw std::invalid_argument(name + ": must start at 0, starts at " + std::to_string(offsets[0]));
  for (std::size_t b = 0; b < batch; ++b) {
    if (offsets[b + 1] < offsets[b]) {
      throw std::invalid_argument(name + ": must not fall, but " + std::to_string(offsets[b + 1]) + " follows " +
                                  std::to_string(offsets[b]));
    }
  }
  throw std::invalid_argument(name + ": must end at the number of values, " + std::to_string(values) + ", ends at " +
                              std::to_string(offsets[batch]));
}

// Returns whether the offsets are 0, 1, 2 and so on.
bool are_places(const std::int64_t* offsets, std::size_t batch) {
  constexpr std::size_t kPiece = 64;  // without a branch within: bags of other sizes show in the first piece
  for (std::size_t start = 0; start <= batch; start += kPiece) {
    const std::size_t end = std::min(batch + 1, start + kPiece);
    std::uint64_t differs = 0;
    for (std::size_t b = start; b < end; ++b) differs |= static_cast<std::uint64_t>(offsets[b]) ^ b;
    if (differs != 0) return false;
  }
  return true;
}

bool fit(const std::int64_t* offsets, std::size_t batch, std::size_t values) {
  // A sign shows where an offset is below 0, or below the one before it; without a branch, for batches are large.
  std::uint64_t signs = 0;
  for (std::size_t b = 0; b < batch; ++b) {
    const auto next = static_cast<std::uint64_t>(offsets[b + 1]);
    signs |= next | (next - static_cast<std::uint64_t>(offsets[b]));
  }
  return offsets[0] == 0 && signs >> 63 == 0 && static_cast<std::uint64_t>(offsets[batch]) == values;
}

}  // namespace

void check_offsets(const std::int64_t* offsets, std::size_t batch, std::size_t values, const char* name) {
  if (!fit(offsets, batch, values)) refuse(offsets, batch, values, name);
}

bool check_offsets(const std::int64_t* offsets, std::size_t batch, std::size_t values, const char* name,
                   std::size_t feature) {
  if (values == batch && are_places(offsets, batch)) return true;
  if (!fit(offsets, batch, values)) {
    refuse(offsets, batch, values, std::string(name) + "[" + std::to_string(feature) + "]");
  }
  return false;
}

}  // namespace emberline
