// assemble: unpacks one batch's packed inputs into the fixed-address tensors of a CUDA graph. assemble.cuh has the
// layout and all arithmetic; this file only says who does which part.
//
// Grid: y is the input; the threads of all x share its units and stride over them. No shared memory, nothing allocated.
//
// Bytes: reads what the batch uses (rows' users and sections once; a user's row again for each of their rows, mostly
// from cache) and writes rows x row bytes of every input. A full batch of 27 MB reads 27 MB and writes 27 MB: at
// 4.8 TB/s that is 11 us and a launch, beside some 500 us for the copy of the 27 MB over PCIe 5. At full occupancy one
// load of 16 bytes a thread keeps 32 KB in flight on each multiprocessor, and 4.8 TB/s at 700 ns asks for 25 KB: there
// should be no need to do several units at a time.
//
// Versions:
//   v1  one unit at a time, a division for each unit of the user's side; its own time was not measured
//
// Full occupancy is 32 registers; at 40, six blocks of 256 threads still fit. Checked by `make cuda-check`:
// budget: assemble 40 registers
#include "assemble.cuh"

extern "C" __global__ void __launch_bounds__(256)
    assemble(const emberline::uint8_t* staging, const emberline::int64_t* table, emberline::int64_t inputs,
             emberline::uint8_t* target, emberline::int64_t* stamp, emberline::int64_t rows) {
  const emberline::int64_t step = static_cast<emberline::int64_t>(gridDim.x) * blockDim.x;
  const emberline::int64_t first = static_cast<emberline::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  emberline::assemble_share(staging, table, inputs, target, stamp, rows, blockIdx.y, first, step);
}
