// The lanes of a warp that work on one thing. Code over a tile is written once: on a GPU each lane runs it, and a
// value per lane is a register; on a host one thread runs it, `each` goes through the lanes, and a value per lane is an
// array. So the tests of a host run every lane of a grid over the kernels' own code, step by step from one exchange to
// the next.
//
// Inside `each` a lane reads its own values and those of others by from(), which all lanes of the tile must reach
// together:
// under conditions that are the same for all of them. What one `each` wrote, from() gives in the next.
#pragma once

#include "host_device.cuh"

namespace emberline {

constexpr int kWarp = 32;

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

template <class T>
struct PerLane {
  T own;
  EMBERLINE_DEVICE T& operator[](int) { return own; }
};

class Tile {
 public:
  // width: lanes, a power of two up to 32. The tiles of a warp lie side by side, so width divides the place of a tile's
  // first.
  EMBERLINE_DEVICE explicit Tile(int width)
      : width_(width),
        lane_(static_cast<int>(threadIdx.x) & (width - 1)),
        shift_((static_cast<int>(threadIdx.x) & (kWarp - 1)) & ~(width - 1)),
        mask_((0xFFFFFFFFu >> (kWarp - width)) << shift_) {}

  EMBERLINE_DEVICE int width() const { return width_; }

  template <class Work>
  EMBERLINE_DEVICE void each(Work work) const {
    work(lane_);
  }

  // What the lane `lane` has: a value of 4 or 8 bytes.
  template <class T>
  EMBERLINE_DEVICE T from(PerLane<T>& values, int lane) const {
    return __shfl_sync(mask_, values.own, lane, width_);
  }

  // Bit i: whether it is true of lane i. Also orders the lanes' memory.
  EMBERLINE_DEVICE uint32_t ballot(PerLane<bool>& values) const {
    const uint32_t lanes = __ballot_sync(mask_, values.own) >> shift_;
    __syncwarp(mask_);
    return width_ == kWarp ? lanes : lanes & ((1u << width_) - 1);
  }

  // Runs work() in the first lane; all get what it gives.
  template <class Work>
  EMBERLINE_DEVICE uint64_t once(Work work) const {
    uint64_t value = 0;
    if (lane_ == 0) value = work();
    return __shfl_sync(mask_, value, 0, width_);
  }

 private:
  int width_, lane_, shift_;
  uint32_t mask_;
};

EMBERLINE_DEVICE int count_bits(uint32_t bits) { return __popc(bits); }

#else

template <class T>
struct PerLane {
  T all[kWarp];
  T& operator[](int lane) { return all[lane]; }
};

class Tile {
 public:
  explicit Tile(int width) : width_(width) {}

  int width() const { return width_; }
  template <class Work>
  void each(Work work) const {
    for (int lane = 0; lane < width_; ++lane) work(lane);
  }
  template <class T>
  T from(PerLane<T>& values, int lane) const {
    return values[lane];
  }
  uint32_t ballot(PerLane<bool>& values) const {
    uint32_t lanes = 0;
    for (int lane = 0; lane < width_; ++lane) lanes |= static_cast<uint32_t>(values[lane]) << lane;
    return lanes;
  }
  template <class Work>
  uint64_t once(Work work) const {
    return work();
  }

 private:
  int width_;
};

inline int count_bits(uint32_t bits) { return __builtin_popcount(bits); }

#endif

// The tile for so many units of a row: a lane for each, between `least` and 32.
EMBERLINE_HD int tile_width(int64_t units, int least) {
  int width = least;
  while (width < kWarp && width < units) width *= 2;
  return width;
}

}  // namespace emberline
