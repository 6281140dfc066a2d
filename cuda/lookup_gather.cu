// lookup_gather: the rows of all unpooled features of a batch, by one launch, each decoded to its own row of the output
// (lookup_gather_fp32, lookup_gather_fp16, lookup_gather_bf16: by the type of the output). lookup_gather.cuh has all
// arithmetic, lookup.cuh the layout of what is read; this file only says who does which part.
//
// Grid: y is the feature; the warps of all x stride over its output, 32 rows at a time. No shared memory, nothing
// allocated, nothing waits: sizes are the launch's or are read on the GPU, so a graph may hold it.
//
// Bytes, for an id that hits: 8 of the id, two sectors of 32 of its bucket (and a second look at one of them, from the
// second-level cache), its row in sectors, and its row of the output: 128 fp16 values as float32 are 8 + 64 + 256 + 512
// = 840 bytes, at 85 % of 4.8 TB/s 4.9 G ids a second, and 13,312 ids in 3 us, which is less than a launch and three
// loads one after the other (some 6 us). 16 values of fp32: 8 + 64 + 64 + 64 = 200 bytes, where the sectors that are
// under way bind first. A table of a chain that has no entry for the id is one more bucket, two sectors. At 128
// registers two blocks fit on a multiprocessor: 16 warps with four units of 16 bytes a lane are 32 KB under way while
// rows are copied, and 512 searches while they are looked for; 4.8 TB/s at 700 ns asks for 25 KB. Held to 80 registers
// (three blocks) the kernel spills on sm_80.
//
// Versions:
//   v1  an id a lane in the search, a tile as wide as the row in the copy; the ways of a bucket in turn; no GPU has
//       measured it
//   v2  the ways of a bucket by a mask (probe_bucket of cache_bucket.cuh); no GPU has measured it. To be tried:
//       the words by plain loads where no publish can run meanwhile (an acquire empties the first-level cache); the
//       whole bucket by one load of a tile of eight lanes; a kernel for each row type, which would take fewer registers
//
// Checked by `make cuda-check`:
// budget: lookup_gather_fp32 128 registers
// budget: lookup_gather_fp16 128 registers
// budget: lookup_gather_bf16 128 registers
#include "lookup_gather.cuh"

namespace {
template <class Output>
__device__ __forceinline__ void gather(const emberline::Lookup& lookup) {
  const emberline::int64_t threads = static_cast<emberline::int64_t>(gridDim.x) * blockDim.x;
  const emberline::int64_t thread = static_cast<emberline::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const emberline::Tile tile(emberline::kWarp);
  emberline::gather_share<Output>(tile, lookup, blockIdx.y, thread / emberline::kWarp, threads / emberline::kWarp);
}
}  // namespace

#define EMBERLINE_GATHER(name, Output)                                                                    \
  extern "C" __global__ void __launch_bounds__(256, 2)                                                    \
      name(const emberline::int64_t* features, const emberline::int64_t* header, emberline::int64_t rows, \
           emberline::int64_t* misses, emberline::uint64_t* miss_count, emberline::int64_t miss_room,     \
           emberline::int64_t use_mask) {                                                                 \
    gather<emberline::Output>({features, header, rows, misses, miss_count, miss_room, use_mask});         \
  }

EMBERLINE_GATHER(lookup_gather_fp32, Fp32Output)
EMBERLINE_GATHER(lookup_gather_fp16, Fp16Output)
EMBERLINE_GATHER(lookup_gather_bf16, Bf16Output)
