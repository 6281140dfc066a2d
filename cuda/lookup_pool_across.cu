// lookup_pool_across: lookup_pool.cu for cards that share rows: what this card does not have is read in the memory of
// the one whose part it is (lookup.cuh). The same grid, table of features, lists and bits.
//
// Bytes, and what a row of another card costs: lookup_gather_across.cu.
//
// Versions:
//   v1  own card first, then the other, one after the other; unmeasured: no figure from a GPU yet
//
// Checked by `make cuda-check`:
// budget: lookup_pool_across 168 registers
#include "lookup_pool.cuh"

extern "C" __global__ void __launch_bounds__(256, 1)
    lookup_pool_across(const emberline::int64_t* features, const emberline::int64_t* header, emberline::int64_t rows,
                       emberline::int64_t* misses, emberline::uint64_t* miss_count, emberline::int64_t miss_room,
                       emberline::int64_t use_mask) {
  const emberline::Lookup lookup{features, header, rows, misses, miss_count, miss_room, use_mask};
  const emberline::int64_t threads = static_cast<emberline::int64_t>(gridDim.x) * blockDim.x;
  const emberline::int64_t thread = static_cast<emberline::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  emberline::pool_share<emberline::RowsAcross>(lookup, blockIdx.y, thread, threads);
}
