// lookup_gather_across_fp32: lookup_gather.cu for cards that share rows: what this card does not have is read in the
// memory of the one whose part it is (lookup.cuh). The same grid, table of features and lists; outputs are float32.
//
// Bytes, for a row of another card: 8 of the id, two sectors of its line here, which has not got it, two there and the
// row in sectors, over NVLink. 128 fp16 values are 64 + 256 bytes across: at 450 GB/s each way, and some 80 % of it for
// sectors at random, 1.1 G such rows a second and card, a twentieth of what its own memory gives and ten times what the
// host does.
//
// Versions:
//   v1  own card first, then the other, one after the other; unmeasured: no figure from a GPU yet
//
// Checked by `make cuda-check`:
// budget: lookup_gather_across_fp32 128 registers
#include "lookup_gather.cuh"

extern "C" __global__ void __launch_bounds__(256, 2)
    lookup_gather_across_fp32(const emberline::int64_t* features, const emberline::int64_t* header,
                              emberline::int64_t rows, emberline::int64_t* misses, emberline::uint64_t* miss_count,
                              emberline::int64_t miss_room, emberline::int64_t use_mask) {
  const emberline::Lookup lookup{features, header, rows, misses, miss_count, miss_room, use_mask};
  const emberline::int64_t threads = static_cast<emberline::int64_t>(gridDim.x) * blockDim.x;
  const emberline::int64_t thread = static_cast<emberline::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const emberline::Tile tile(emberline::kWarp);
  emberline::gather_share<emberline::Fp32Output, emberline::RowsAcross>(
      tile, lookup, blockIdx.y, thread / emberline::kWarp, threads / emberline::kWarp);
}
