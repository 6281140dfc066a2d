// A count-min sketch of ids that are not in the table (Cormode and Muthukrishnan), blocked: an id's four counters lie
// in one 64-byte line. About one byte per row of capacity. Used under the writer's mutex.
#pragma once

#include <algorithm>
#include <cstdint>

#include "bucket.cuh"
#include "table/pages.h"

namespace emberline {

class Sketch {
 public:
  explicit Sketch(std::uint64_t rows) : buckets_(std::max<std::uint64_t>(2, rows / 64 + 1)), pages_(buckets_ * 64) {}

  // Counts one use; returns how often the id was seen, at least, and more only by collision. At most 255.
  std::uint32_t add(std::int64_t id) {
    std::uint8_t* counters[4];
    const std::uint32_t least = find(id, counters);
    raise(counters, std::min(least + 1, 255u));
    return std::min(least + 1, 255u);
  }

  // Remembers a count that was taken elsewhere: that of a row which leaves the table.
  void remember(std::int64_t id, std::uint32_t count) {
    std::uint8_t* counters[4];
    find(id, counters);
    raise(counters, std::min(count, 255u));
  }

  void halve() {
    char* data = pages_.data();
    for (std::uint64_t i = 0; i < buckets_ * 64; ++i)
      data[i] = static_cast<char>(static_cast<std::uint8_t>(data[i]) >> 1);
  }

  std::size_t bytes() const { return pages_.bytes(); }

 private:
  // The id's counters; returns the smallest, the only one that can be the true count.
  std::uint32_t find(std::int64_t id, std::uint8_t* (&counters)[4]) const {
    // Another mixing than the index's, so that ids that crowd a bucket there are spread here.
    const std::uint64_t mixed = mix(mix_id(id) ^ 0xD6E8FEB86659FD93ull);
    std::uint8_t* bucket = reinterpret_cast<std::uint8_t*>(pages_.data()) + first_bucket(mixed, buckets_) * 64;
    std::uint32_t least = 255;
    for (int i = 0; i < 4; ++i) {
      counters[i] = bucket + std::ptrdiff_t{16} * i + ((mixed >> (4 * i)) & 15);
      least = std::min<std::uint32_t>(least, *counters[i]);
    }
    return least;
  }

  // Conservative update: no counter above what is known.
  static void raise(std::uint8_t* (&counters)[4], std::uint32_t count) {
    for (std::uint8_t* counter : counters) *counter = std::max(*counter, static_cast<std::uint8_t>(count));
  }

  std::uint64_t buckets_;
  Pages pages_;
};

}  // namespace emberline
