#include "rows/pooling.h"

#include <stdexcept>
#include <string>

namespace emberline {

void check_offsets(const std::int64_t* offsets, std::size_t batch, std::size_t values, const char* name) {
  if (offsets[0] != 0) {
    throw std::invalid_argument(std::string(name) + ": must start at 0, starts at " + std::to_string(offsets[0]));
  }
  for (std::size_t b = 0; b < batch; ++b) {
    if (offsets[b + 1] < offsets[b]) {
      throw std::invalid_argument(std::string(name) + ": must not fall, but " + std::to_string(offsets[b + 1]) +
                                  " follows " + std::to_string(offsets[b]));
    }
  }
  if (static_cast<std::size_t>(offsets[batch]) != values) {
    throw std::invalid_argument(std::string(name) + ": must end at the number of values, " + std::to_string(values) +
                                ", ends at " + std::to_string(offsets[batch]));
  }
}

}  // namespace emberline
