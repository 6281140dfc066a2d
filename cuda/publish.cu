// publish: changes a GPU's replica of a cache by lists that the host made. publish.cuh has the protocol: rows, then
// words that empty, a grace period that the host keeps with events, then ids, then words of new owners, each list a
// launch of its own (publish_rows or publish_stores).
//
// Grid: threads stride over the pieces of the rows, or over the stores. The lengths of the lists are read on the GPU,
// so an empty list is a launch that does nothing.
//
// Bytes: a row is read and written once; a store reads 16 bytes and writes a sector of 32. 10,000 rows of 512 bytes: 5
// MB each way, some 2 us at 4.8 TB/s from the GPU's own staging, 95 us from pinned memory over PCIe 5; 20,000 stores:
// under 1 us of traffic. A launch is more than that, so the host should make few lists of many changes.
//
// Versions:
//   v1  one piece at a time, a division for each; its own time was not measured
//
// Checked by `make cuda-check`:
// budget: publish_rows 40 registers
// budget: publish_stores 32 registers
#include "publish.cuh"

extern "C" __global__ void __launch_bounds__(256)
    publish_rows(const emberline::int64_t* entries, const emberline::int64_t* count, emberline::int64_t room,
                 const emberline::uint8_t* staging, emberline::int64_t staged, emberline::uint8_t* slab,
                 emberline::int64_t slots, emberline::int64_t stride) {
  const emberline::int64_t threads = static_cast<emberline::int64_t>(gridDim.x) * blockDim.x;
  const emberline::int64_t thread = static_cast<emberline::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  emberline::publish_rows_share(entries, count, room, staging, staged, slab, slots, stride, thread, threads);
}

extern "C" __global__ void __launch_bounds__(256)
    publish_stores(const emberline::int64_t* entries, const emberline::int64_t* count, emberline::int64_t room,
                   emberline::uint64_t* buckets, emberline::int64_t bucket_count) {
  const emberline::int64_t threads = static_cast<emberline::int64_t>(gridDim.x) * blockDim.x;
  const emberline::int64_t thread = static_cast<emberline::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  emberline::publish_stores_share(entries, count, room, buckets, bucket_count, thread, threads);
}
