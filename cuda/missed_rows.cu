// missed_rows: rows that a lookup missed, scattered (missed_rows_fp32, missed_rows_fp16, missed_rows_bf16: by the type
// of the output) or added to their bags (missed_rows_add). missed_rows.cuh has the lists, all arithmetic, and how a sum
// is rounded.
//
// Grid: a warp an entry, all warps stride over the list, whose length is read on the GPU. On the stream of the lookup,
// after it; an empty list is a launch that does nothing, so a graph may hold one.
//
// Bytes: a missed row is read once and its row of the output written (a bag's read too). In pinned memory the reads
// cross PCIe: at 55 GB/s and 512 bytes a row some 107 million rows a second, 1 % missing of 13,312 ids in 1.2 us and a
// round trip.
//
// Versions:
//   v1  a warp an entry; a bag's columns go through its rows one after the other; its own time was not measured
//
// Checked by `make cuda-check`:
// budget: missed_rows_fp32 48 registers
// budget: missed_rows_fp16 48 registers
// budget: missed_rows_bf16 48 registers
// budget: missed_rows_add 64 registers
#include "missed_rows.cuh"

namespace {

__device__ __forceinline__ emberline::int64_t own_thread() {
  return static_cast<emberline::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

__device__ __forceinline__ emberline::int64_t all_threads() {
  return static_cast<emberline::int64_t>(gridDim.x) * blockDim.x;
}

}  // namespace

#define EMBERLINE_MISSED_ROWS(name, share)                                                                           \
  extern "C" __global__ void __launch_bounds__(256, 4)                                                               \
      name(const emberline::int64_t* features, const emberline::int64_t* header, emberline::int64_t rows,            \
           const emberline::int64_t* entries, const emberline::int64_t* count, emberline::int64_t room,              \
           const float* staging, const float* weights) {                                                             \
    emberline::share({features, header, rows, entries, count, room, staging, weights}, own_thread(), all_threads()); \
  }

EMBERLINE_MISSED_ROWS(missed_rows_fp32, scatter_share<emberline::Fp32Output>)
EMBERLINE_MISSED_ROWS(missed_rows_fp16, scatter_share<emberline::Fp16Output>)
EMBERLINE_MISSED_ROWS(missed_rows_bf16, scatter_share<emberline::Bf16Output>)
EMBERLINE_MISSED_ROWS(missed_rows_add, add_share)
