// lookup_gather: the rows of all unpooled features of a batch that have one row type, by one launch, each decoded to
// its own row of the output (lookup_gather_ROW_OUTPUT: by the types of the rows and of the output). lookup_gather.cuh
// has all arithmetic, lookup.cuh the layout of what is read; this file only says who does which part. Where tables of
// several row types stand side by side there is a launch for each type, and the blocks of the other features end at
// once.
//
// Grid: y is the feature; the warps of all x stride over its output, 32 rows at a time. No shared memory, nothing
// allocated, nothing waits: sizes are the launch's or are read on the GPU, so a graph may hold it.
//
// Bytes, for an id that hits: 8 of the id, 64 of its bucket, its row in sectors of 32, and its row of the output: 128
// fp16 values as float32 are 8 + 64 + 256 + 512 = 840 bytes, at 85 % of 4.8 TB/s 4.9 G ids a second, and 13,312 ids in
// 3 us, which is less than a launch and three loads one after the other (some 4 us). A table of a chain that has no
// entry for the id is one more bucket. At 64 registers four blocks fit on a multiprocessor: 32 warps.
//
// Versions, with what an H200 reached of the limit (a gather by row numbers) for 1,048,576 uniform ids:
//   v1  an id a lane in the search, a tile as wide as the row in the copy; the ways of a bucket in turn: 2.91 G ids/s
//       of 128 fp32 values
//   v2  the ways of a bucket by a mask: 3.06 G (0.81 of the limit), and 5.79 G of 32 fp16 values (0.28)
//   v3  a bucket by one round trip (probe_loaded of cache_bucket.cuh) instead of three, and a kernel for each row type,
//       with twice the warps: see docs/gpu-figures.md
//
// Checked by `make cuda-check`:
// budget: lookup_gather_fp32_fp32 64 registers
// budget: lookup_gather_fp32_fp16 64 registers
// budget: lookup_gather_fp32_bf16 64 registers
// budget: lookup_gather_fp16_fp32 64 registers
// budget: lookup_gather_fp16_fp16 64 registers
// budget: lookup_gather_fp16_bf16 64 registers
// budget: lookup_gather_bf16_fp32 64 registers
// budget: lookup_gather_bf16_fp16 64 registers
// budget: lookup_gather_bf16_bf16 64 registers
// budget: lookup_gather_int8_fp32 64 registers
// budget: lookup_gather_int8_fp16 64 registers
// budget: lookup_gather_int8_bf16 64 registers
// budget: lookup_gather_fp8_fp32 64 registers
// budget: lookup_gather_fp8_fp16 64 registers
// budget: lookup_gather_fp8_bf16 64 registers
#include "lookup_gather.cuh"

namespace {
template <class Output, int kType>
__device__ __forceinline__ void gather(const emberline::Lookup& lookup) {
  const emberline::int64_t threads = static_cast<emberline::int64_t>(gridDim.x) * blockDim.x;
  const emberline::int64_t thread = static_cast<emberline::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const emberline::Tile tile(emberline::kWarp);
  emberline::gather_share<Output, emberline::OwnRows, kType>(tile, lookup, blockIdx.y, thread / emberline::kWarp,
                                                             threads / emberline::kWarp);
}
}  // namespace

#define EMBERLINE_GATHER(name, Output, kType)                                                                       \
  extern "C" __global__ void __launch_bounds__(256, 4)                                                              \
      name(const emberline::int64_t* features, const emberline::int64_t* header, emberline::int64_t rows,           \
           emberline::int64_t* misses, emberline::uint64_t* miss_count, emberline::int64_t miss_room,               \
           emberline::int64_t use_mask) {                                                                           \
    gather<emberline::Output, emberline::kType>({features, header, rows, misses, miss_count, miss_room, use_mask}); \
  }

EMBERLINE_GATHER(lookup_gather_fp32_fp32, Fp32Output, kRowFp32)
EMBERLINE_GATHER(lookup_gather_fp32_fp16, Fp16Output, kRowFp32)
EMBERLINE_GATHER(lookup_gather_fp32_bf16, Bf16Output, kRowFp32)
EMBERLINE_GATHER(lookup_gather_fp16_fp32, Fp32Output, kRowFp16)
EMBERLINE_GATHER(lookup_gather_fp16_fp16, Fp16Output, kRowFp16)
EMBERLINE_GATHER(lookup_gather_fp16_bf16, Bf16Output, kRowFp16)
EMBERLINE_GATHER(lookup_gather_bf16_fp32, Fp32Output, kRowBf16)
EMBERLINE_GATHER(lookup_gather_bf16_fp16, Fp16Output, kRowBf16)
EMBERLINE_GATHER(lookup_gather_bf16_bf16, Bf16Output, kRowBf16)
EMBERLINE_GATHER(lookup_gather_int8_fp32, Fp32Output, kRowInt8)
EMBERLINE_GATHER(lookup_gather_int8_fp16, Fp16Output, kRowInt8)
EMBERLINE_GATHER(lookup_gather_int8_bf16, Bf16Output, kRowInt8)
EMBERLINE_GATHER(lookup_gather_fp8_fp32, Fp32Output, kRowFp8)
EMBERLINE_GATHER(lookup_gather_fp8_fp16, Fp16Output, kRowFp8)
EMBERLINE_GATHER(lookup_gather_fp8_bf16, Bf16Output, kRowFp8)
