"""The arithmetic of an index bucket compiles for every GPU, as device code and as host code of the same file."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CUDA = Path(__file__).parents[3] / "cuda"
NVCC = shutil.which("nvcc")
# Every function of bucket.cuh, with results that nobody can compute away.
KERNEL = r"""
#include "bucket.cuh"

using namespace emberline;

struct Bucket {
  long long ids[kBucketIds];
  unsigned slots[kBucketIds];
  unsigned version;
};
static_assert(sizeof(Bucket) == 64, "a bucket is 64 bytes on the GPU too");

extern "C" __global__ void use_every_function(const Bucket* buckets, unsigned long long count, const long long* ids,
                                              unsigned n, unsigned char* scores, unsigned* slots) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const long long id = ids[i];
  const uint64_t mixed = mix_id(id);
  const Bucket& first = buckets[first_bucket(mixed, count)];
  const auto at = [&](const Bucket& bucket) {
    const uint32_t mask = match([&](int k) { return bucket.ids[k]; }, id);
    return mask == 0 ? kEmptySlot : bucket.slots[lowest_bit(mask)];
  };
  unsigned slot = at(first);
  if (slot == kEmptySlot && (first.version & kOverflowBit) != 0) slot = at(buckets[second_bucket(mixed, count)]);
  const uint8_t score = count_halve(count_add(scores[i], 1, static_cast<uint32_t>(mix(mixed + kVersionStep))));
  scores[i] = is_victim(score, count_value(count_code(n, i))) && multiply_high(mixed, count) < kMaxCount ? 0 : score;
  slots[i] = slot;
}

// The same functions on the host, from the same text.
unsigned char on_the_host(long long id) { return count_add(0, static_cast<uint32_t>(first_bucket(mix_id(id), 7)), 0); }
"""


@pytest.mark.slow
@pytest.mark.skipif(NVCC is None, reason="no nvcc on this machine")
@pytest.mark.parametrize("gpu", ["sm_80", "sm_90", "sm_100"])
def test_a_kernel_that_uses_every_function_compiles(gpu: str, tmp_path: Path) -> None:
    source = tmp_path / "bucket.cu"
    source.write_text(KERNEL, encoding="utf-8")
    command = [
        str(NVCC),
        "-std=c++17",
        "--extended-lambda",
        f"-arch={gpu}",
        "-I",
        str(CUDA),
        "-Werror",
        "all-warnings",
    ]
    done = subprocess.run(
        [*command, "-c", str(source), "-o", str(tmp_path / "bucket.o")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "bucket.o").stat().st_size > 0


def test_the_kernel_uses_every_function_there_is() -> None:
    text = (CUDA / "bucket.cuh").read_text(encoding="utf-8")
    names = [line.split("(")[0].split()[-1] for line in text.splitlines() if line.startswith("EMBERLINE_HD ")]
    assert len(names) >= 10
    assert not [name for name in names if f"{name}(" not in KERNEL]
