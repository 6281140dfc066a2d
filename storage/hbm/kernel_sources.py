"""Lists the sources of cuda/ that hold the kernels of lookups, and sets the threads in a block of any kernel."""

from __future__ import annotations

# Threads of each block; __launch_bounds__ of the kernels say the same.
THREADS = 256
# Row types that kernels decode, as kRow* of cuda/row_decode.cuh; the output types of unpooled rows.
ROW_TYPES = {"fp32": 0, "fp16": 1, "bf16": 2, "int8": 3, "fp8": 4}
OUTPUT_TYPES = ("fp32", "fp16", "bf16")
# Kernels of each source. A lookup has one for each row type, and for each output type.
SOURCES = {
    "lookup_gather": tuple(f"lookup_gather_{row}_{output}" for row in ROW_TYPES for output in OUTPUT_TYPES),
    "lookup_pool": tuple(f"lookup_pool_{row}" for row in ROW_TYPES),
    "lookup_across": (
        *(f"lookup_gather_across_{row}" for row in ROW_TYPES),
        *(f"lookup_pool_across_{row}" for row in ROW_TYPES),
    ),
    "missed_rows": ("missed_rows_fp32", "missed_rows_fp16", "missed_rows_bf16", "missed_rows_add"),
    "publish": ("publish_rows", "publish_stores"),
}
# The source that only GPUs that share rows need.
ACROSS = "lookup_across"
