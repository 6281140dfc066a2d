// lookup_pool: all pooled features of a batch, by one launch: bags of rows summed in float32. lookup_pool.cuh has all
// arithmetic, lookup.cuh the layout of what is read; this file only says who does which part.
//
// Grid: y is the feature; the tiles of all x stride over its bags. A tile has a lane for each unit of a row, 4 to 32.
// No shared memory, nothing allocated, nothing waits: sizes are the launch's or are read on the GPU, so a graph may
// hold it.
//
// Bytes, for an id that hits: 8 of the id, two sectors of 32 of its bucket, its row in sectors; the output is a row for
// a bag. 128 fp16 values: 328 bytes, at 85 % of 4.8 TB/s 12.4 G ids a second. At 128 registers two blocks fit on a
// multiprocessor: 16 warps with four units of 16 bytes a lane are 32 KB under way, and 4.8 TB/s at 700 ns asks for 25
// KB. Long bags in small batches leave lanes idle: a bag is one tile's, or its bits would not be the host's.
//
// Versions:
//   v1  a tile a bag, an id a lane in the search, four rows under way; the ways of a bucket in turn; no GPU has
//       measured it
//   v2  the ways of a bucket by a mask (probe_bucket of cache_bucket.cuh); no GPU has measured it. To be tried: a
//       kernel for each row type (fp32 alone needs four sums a lane where int8 needs sixteen); words by plain loads, as
//       in lookup_gather
//
// Checked by `make cuda-check`:
// budget: lookup_pool 128 registers
#include "lookup_pool.cuh"

extern "C" __global__ void __launch_bounds__(256, 2)
    lookup_pool(const emberline::int64_t* features, const emberline::int64_t* header, emberline::int64_t rows,
                emberline::int64_t* misses, emberline::uint64_t* miss_count, emberline::int64_t miss_room,
                emberline::int64_t use_mask) {
  const emberline::int64_t threads = static_cast<emberline::int64_t>(gridDim.x) * blockDim.x;
  const emberline::int64_t thread = static_cast<emberline::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  emberline::pool_share({features, header, rows, misses, miss_count, miss_room, use_mask}, blockIdx.y, thread, threads);
}
