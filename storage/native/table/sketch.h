// A count-min sketch of ids that are not in the table (Cormode and Muthukrishnan), blocked: an id's four counters lie in one
// 64-byte line. About one byte per row of capacity. Used under the writer's mutex.
#pragma once

#include <algorithm>
#include <cstdint>

#include "line.cuh"
#include "table/pages.h"

namespace emberline {

class Sketch {
 public:
  explicit Sketch(std::uint64_t rows) : lines_(std::max<std::uint64_t>(2, rows / 64 + 1)), pages_(lines_ * 64) {}

  // Counts one use; returns how often the id was seen, at least, and more only by collision.
  std::uint32_t add(std::int64_t id) {
    // Another mixing than the index's, so that ids that crowd a line there are spread here.
    const std::uint64_t mixed = mix(mix_id(id) ^ 0xD6E8FEB86659FD93ull);
    std::uint8_t* line = reinterpret_cast<std::uint8_t*>(pages_.data()) + first_line(mixed, lines_) * 64;
    std::uint8_t* counters[4];
    std::uint8_t least = 255;
    for (int i = 0; i < 4; ++i) {
      counters[i] = line + 16 * i + ((mixed >> (4 * i)) & 15);
      least = std::min(least, *counters[i]);
    }
    if (least == 255) return 255;
    for (std::uint8_t* counter : counters) {
      if (*counter == least) ++*counter;  // conservative update: only the smallest can be the true count
    }
    return least + 1u;
  }

  void halve() {
    char* data = pages_.data();
    for (std::uint64_t i = 0; i < lines_ * 64; ++i) data[i] = static_cast<char>(static_cast<std::uint8_t>(data[i]) >> 1);
  }

  std::size_t bytes() const { return pages_.bytes(); }

 private:
  std::uint64_t lines_;
  Pages pages_;
};

}  // namespace emberline
