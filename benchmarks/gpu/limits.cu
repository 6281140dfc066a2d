// What a GPU gives when nothing is looked for: rows by their numbers, written out or added up. A row is 2^shift pieces
// of 16 bytes. The lookups of cuda/ are measured beside these; nothing else uses them.
//
// Sums are taken word by word as integers: what is added costs nothing beside what is read.
typedef unsigned int uint32;
typedef long long int64;

namespace {

constexpr int kAhead = 4;
constexpr int kRowsAhead = 8;

__device__ __forceinline__ int64 own_thread() { return static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x; }

__device__ __forceinline__ int64 all_threads() { return static_cast<int64>(gridDim.x) * blockDim.x; }

}  // namespace

// budget: limit_gather 64 registers
extern "C" __global__ void __launch_bounds__(256)
    limit_gather(const uint4* rows, const int64* numbers, uint4* output, int64 count, int64 shift) {
  const int64 pieces = count << shift;
  const int64 mask = (int64{1} << shift) - 1;
  for (int64 first = own_thread(); first < pieces; first += kAhead * all_threads()) {
    uint4 held[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int64 at = first + k * all_threads();
      if (at < pieces) held[k] = rows[(numbers[at >> shift] << shift) + (at & mask)];
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int64 at = first + k * all_threads();
      if (at < pieces) output[at] = held[k];
    }
  }
}

// Bags of `length` numbers each, one after the other; a bag is 2^shift threads'.
// budget: limit_pool 64 registers
extern "C" __global__ void __launch_bounds__(256)
    limit_pool(const uint4* rows, const int64* numbers, uint4* output, int64 bags, int64 length, int64 shift) {
  const int64 piece = own_thread() & ((int64{1} << shift) - 1);
  for (int64 bag = own_thread() >> shift; bag < bags; bag += all_threads() >> shift) {
    const int64* own = numbers + bag * length;
    uint4 sum = {0, 0, 0, 0};
    for (int64 first = 0; first < length; first += kRowsAhead) {
      uint4 held[kRowsAhead];
#pragma unroll
      for (int k = 0; k < kRowsAhead; ++k) {
        if (first + k < length) {
          held[k] = rows[(own[first + k] << shift) + piece];
        } else {
          held[k] = {0, 0, 0, 0};
        }
      }
#pragma unroll
      for (int k = 0; k < kRowsAhead; ++k) {
        sum.x += held[k].x;
        sum.y += held[k].y;
        sum.z += held[k].z;
        sum.w += held[k].w;
      }
    }
    output[(bag << shift) + piece] = sum;
  }
}
