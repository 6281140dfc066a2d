// The kernels of cuda/ for a host: their own sources, each run by every thread of its grid, one after the other. Where
// the lanes of a tile are a loop (tile.cuh), the first lane of a tile runs for all.
//
// run_NAME(values, blocks x, blocks y): a kernel's arguments, eight bytes each. values_of_NAME: how many it takes.
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)

namespace {
struct Place {
  std::int64_t x = 1, y = 1;
};
// One launch at a time in each thread of the host.
thread_local Place gridDim, blockDim, blockIdx, threadIdx;
}  // namespace

#include "lookup_across.cu"
#include "lookup_gather.cu"
#include "lookup_pool.cu"
#include "missed_rows.cu"
#include "publish.cu"

namespace {

constexpr std::int64_t kThreads = 256;  // of a block, as __launch_bounds__ says

template <class T>
T argument(std::int64_t value) {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<T>(static_cast<std::uintptr_t>(value));
  } else {
    return static_cast<T>(value);
  }
}

template <class... Arguments, std::size_t... kPlaces>
void call(void (*kernel)(Arguments...), const std::int64_t* values, std::index_sequence<kPlaces...>) {
  kernel(argument<Arguments>(values[kPlaces])...);
}

template <class... Arguments>
constexpr std::int64_t count_of(void (*)(Arguments...)) {
  return static_cast<std::int64_t>(sizeof...(Arguments));
}

// width_at(y): lanes of a tile.
template <class... Arguments, class Width>
void run(void (*kernel)(Arguments...), const std::int64_t* values, Place blocks, const Width& width_at) {
  gridDim = blocks;
  blockDim = {kThreads, 1};
  for (blockIdx.y = 0; blockIdx.y < blocks.y; ++blockIdx.y) {
    const std::int64_t width = width_at(blockIdx.y);
    for (blockIdx.x = 0; blockIdx.x < blocks.x; ++blockIdx.x) {
      for (threadIdx.x = 0; threadIdx.x < kThreads; threadIdx.x += width) {
        call(kernel, values, std::index_sequence_for<Arguments...>{});
      }
    }
  }
}

std::int64_t width_of_pool(const std::int64_t* values, std::int64_t number) {
  return emberline::pool_width(emberline::feature_at(argument<const std::int64_t*>(values[0]),
                                                     argument<const std::int64_t*>(values[1]), number));
}

}  // namespace

#define EMBERLINE_ON_HOST(name, width)                                                                               \
  extern "C" void run_##name(const std::int64_t* values, std::int64_t blocks_x, std::int64_t blocks_y) {             \
    run(name, values, {blocks_x, blocks_y}, [&]([[maybe_unused]] std::int64_t y) -> std::int64_t { return width; }); \
  }                                                                                                                  \
  extern "C" const std::int64_t values_of_##name = count_of(name);

#define EMBERLINE_LOOKUPS_ON_HOST(row_type)                            \
  EMBERLINE_ON_HOST(lookup_gather_##row_type##_fp32, emberline::kWarp) \
  EMBERLINE_ON_HOST(lookup_gather_##row_type##_fp16, emberline::kWarp) \
  EMBERLINE_ON_HOST(lookup_gather_##row_type##_bf16, emberline::kWarp) \
  EMBERLINE_ON_HOST(lookup_gather_across_##row_type, emberline::kWarp) \
  EMBERLINE_ON_HOST(lookup_pool_##row_type, width_of_pool(values, y))  \
  EMBERLINE_ON_HOST(lookup_pool_across_##row_type, width_of_pool(values, y))

EMBERLINE_LOOKUPS_ON_HOST(fp32)
EMBERLINE_LOOKUPS_ON_HOST(fp16)
EMBERLINE_LOOKUPS_ON_HOST(bf16)
EMBERLINE_LOOKUPS_ON_HOST(int8)
EMBERLINE_LOOKUPS_ON_HOST(fp8)
EMBERLINE_ON_HOST(missed_rows_fp32, 1)
EMBERLINE_ON_HOST(missed_rows_fp16, 1)
EMBERLINE_ON_HOST(missed_rows_bf16, 1)
EMBERLINE_ON_HOST(missed_rows_add, 1)
EMBERLINE_ON_HOST(publish_rows, 1)
EMBERLINE_ON_HOST(publish_stores, 1)
