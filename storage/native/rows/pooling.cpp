#include "rows/pooling.h"

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

void check_offsets(const std::int64_t* offsets, std::size_t batch, std::size_t values, const char* name,
                   std::size_t feature) {
  if (!fit(offsets, batch, values)) {
    refuse(offsets, batch, values, std::string(name) + "[" + std::to_string(feature) + "]");
  }
}

}  // namespace emberline
