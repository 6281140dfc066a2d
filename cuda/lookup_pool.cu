// lookup_pool: all pooled features of a batch that have one row type, by one launch: bags of rows summed in float32
// (lookup_pool_ROW: by the type of the rows). lookup_pool.cuh has all arithmetic, lookup.cuh the layout of what is
// read; this file only says who does which part. Where tables of several row types stand side by side there is a launch
// for each type, and the blocks of the other features end at once.
//
// Grid: y is the feature; the tiles of all x stride over its bags. A tile has a lane for each unit of a row, 4 to 32.
// No shared memory, nothing allocated, nothing waits: sizes are the launch's or are read on the GPU, so a graph may
// hold it.
//
// Bytes, for an id that hits: 8 of the id, 64 of its bucket, its row in sectors of 32; the output is a row for a bag.
// 128 fp16 values: 328 bytes, at 85 % of 4.8 TB/s 12.4 G ids a second. At 80 registers three blocks fit on a
// multiprocessor: 24 warps with four units of 16 bytes a lane. Sixteen sums a lane (int8, fp8) take 128 registers and
// two blocks. Long bags in small batches leave lanes idle: a bag is one tile's, or its bits would not be the host's.
//
// Versions, with what an H200 reached of the limit (rows by their numbers) for bags of 64 of 128 fp32 values:
//   v1  a tile a bag, an id a lane in the search, four rows under way; the ways of a bucket in turn: 4.60 G ids/s
//   v2  the ways of a bucket by a mask: 5.07 G (0.65 of the limit), 6.70 G by Zipf (0.35)
//   v3  a bucket by one round trip (probe_loaded of cache_bucket.cuh) instead of three, and a kernel for each row type,
//       with half as many warps more: see docs/gpu-figures.md
//
// Checked by `make cuda-check`:
// budget: lookup_pool_fp32 80 registers
// budget: lookup_pool_fp16 80 registers
// budget: lookup_pool_bf16 80 registers
// budget: lookup_pool_int8 128 registers
// budget: lookup_pool_fp8 128 registers
#include "lookup_pool.cuh"

#define EMBERLINE_POOL(name, kType, blocks)                                                                   \
  extern "C" __global__ void __launch_bounds__(256, blocks)                                                   \
      name(const emberline::int64_t* features, const emberline::int64_t* header, emberline::int64_t rows,     \
           emberline::int64_t* misses, emberline::uint64_t* miss_count, emberline::int64_t miss_room,         \
           emberline::int64_t use_mask) {                                                                     \
    const emberline::int64_t threads = static_cast<emberline::int64_t>(gridDim.x) * blockDim.x;               \
    const emberline::int64_t thread = static_cast<emberline::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; \
    emberline::pool_share<emberline::OwnRows, emberline::kType>(                                              \
        {features, header, rows, misses, miss_count, miss_room, use_mask}, blockIdx.y, thread, threads);      \
  }

EMBERLINE_POOL(lookup_pool_fp32, kRowFp32, 3)
EMBERLINE_POOL(lookup_pool_fp16, kRowFp16, 3)
EMBERLINE_POOL(lookup_pool_bf16, kRowBf16, 3)
EMBERLINE_POOL(lookup_pool_int8, kRowInt8, 2)
EMBERLINE_POOL(lookup_pool_fp8, kRowFp8, 2)
