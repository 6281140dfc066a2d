// lookup_gather_across_ROW and lookup_pool_across_ROW: lookup_gather.cu and lookup_pool.cu for GPUs that share rows:
// what this GPU does not have is read in the memory of the one whose part it is (lookup_across.cuh). The same grid,
// table of features, lists and bits; outputs are float32.
//
// Bytes, for a row of another GPU: 8 of the id, two sectors of its bucket here, which has not got it, two there and the
// row in sectors, over NVLink. 128 fp16 values are 64 + 256 bytes across: at 450 GB/s each way, and some 80 % of it for
// sectors at random, 1.1 G such rows a second and GPU, a twentieth of what its own memory gives and ten times what the
// host does.
//
// Versions:
//   v1  own GPU first, then the other, one after the other; unmeasured: no figure from a GPU yet
//
// Checked by `make cuda-check`:
// budget: lookup_gather_across_fp32 80 registers
// budget: lookup_gather_across_fp16 80 registers
// budget: lookup_gather_across_bf16 80 registers
// budget: lookup_gather_across_int8 80 registers
// budget: lookup_gather_across_fp8 80 registers
// budget: lookup_pool_across_fp32 128 registers
// budget: lookup_pool_across_fp16 128 registers
// budget: lookup_pool_across_bf16 128 registers
// budget: lookup_pool_across_int8 128 registers
// budget: lookup_pool_across_fp8 128 registers
#include "lookup_across.cuh"
#include "lookup_gather.cuh"
#include "lookup_pool.cuh"

#define EMBERLINE_GATHER_ACROSS(name, kType)                                                                  \
  extern "C" __global__ void __launch_bounds__(256, 3)                                                        \
      name(const emberline::int64_t* features, const emberline::int64_t* header, emberline::int64_t rows,     \
           emberline::int64_t* misses, emberline::uint64_t* miss_count, emberline::int64_t miss_room,         \
           emberline::int64_t use_mask) {                                                                     \
    const emberline::Lookup lookup{features, header, rows, misses, miss_count, miss_room, use_mask};          \
    const emberline::int64_t threads = static_cast<emberline::int64_t>(gridDim.x) * blockDim.x;               \
    const emberline::int64_t thread = static_cast<emberline::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; \
    const emberline::Tile tile(emberline::kWarp);                                                             \
    emberline::gather_share<emberline::Fp32Output, emberline::RowsAcross, emberline::kType>(                  \
        tile, lookup, blockIdx.y, thread / emberline::kWarp, threads / emberline::kWarp);                     \
  }

#define EMBERLINE_POOL_ACROSS(name, kType)                                                                    \
  extern "C" __global__ void __launch_bounds__(256, 2)                                                        \
      name(const emberline::int64_t* features, const emberline::int64_t* header, emberline::int64_t rows,     \
           emberline::int64_t* misses, emberline::uint64_t* miss_count, emberline::int64_t miss_room,         \
           emberline::int64_t use_mask) {                                                                     \
    const emberline::Lookup lookup{features, header, rows, misses, miss_count, miss_room, use_mask};          \
    const emberline::int64_t threads = static_cast<emberline::int64_t>(gridDim.x) * blockDim.x;               \
    const emberline::int64_t thread = static_cast<emberline::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; \
    emberline::pool_share<emberline::RowsAcross, emberline::kType>(lookup, blockIdx.y, thread, threads);      \
  }

EMBERLINE_GATHER_ACROSS(lookup_gather_across_fp32, kRowFp32)
EMBERLINE_GATHER_ACROSS(lookup_gather_across_fp16, kRowFp16)
EMBERLINE_GATHER_ACROSS(lookup_gather_across_bf16, kRowBf16)
EMBERLINE_GATHER_ACROSS(lookup_gather_across_int8, kRowInt8)
EMBERLINE_GATHER_ACROSS(lookup_gather_across_fp8, kRowFp8)
EMBERLINE_POOL_ACROSS(lookup_pool_across_fp32, kRowFp32)
EMBERLINE_POOL_ACROSS(lookup_pool_across_fp16, kRowFp16)
EMBERLINE_POOL_ACROSS(lookup_pool_across_bf16, kRowBf16)
EMBERLINE_POOL_ACROSS(lookup_pool_across_int8, kRowInt8)
EMBERLINE_POOL_ACROSS(lookup_pool_across_fp8, kRowFp8)
