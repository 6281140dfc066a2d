// What a disk can do at best: random reads with many under way, past the page cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace emberline::limits {

struct RandomReads {
  double per_second = 0.0;
  std::string engine;  // "io_uring" or "threads"
};

// Whether this kernel, and what guards it, lets a process use io_uring.
bool has_io_uring();

// Reads `count` blocks of block_bytes at random multiples of it from a file, `depth` under way at any time, with
// O_DIRECT. engine: "io_uring", "threads" (depth threads that each read one block at a time), or "" for the best that
// works. Throws std::system_error, std::invalid_argument; a file shorter than one block is refused.
RandomReads random_reads(const std::string& path, std::size_t block_bytes, unsigned depth, std::size_t count,
                         std::uint64_t seed, const std::string& engine = "");

}  // namespace emberline::limits
