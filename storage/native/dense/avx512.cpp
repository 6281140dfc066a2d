// The dense kernels for AVX-512 (F, BW, VL). Compiled for these alone: nothing here may run, or be linked into what
// runs, elsewhere.
#include <immintrin.h>

#include <cstring>

#include "dense/kernels.h"

namespace emberline::dense {
namespace {

#include "dense/avx512_vector.h"
#include "dense/vector_functions.h"
#include "dense/vector_kernels.h"

}  // namespace

const DenseKernels kAvx512Dense = kKernels;

}  // namespace emberline::dense
