"""Lists the sources of cuda/ that hold the kernels of lookups, and sets the threads in a block of any kernel."""

from __future__ import annotations

# Threads of each block; __launch_bounds__ of the kernels say the same.
THREADS = 256
# Kernels of each source. The kernels of an output type end with its name.
SOURCES = {
    "lookup_gather": ("lookup_gather_fp32", "lookup_gather_fp16", "lookup_gather_bf16"),
    "lookup_pool": ("lookup_pool",),
    "lookup_across": ("lookup_gather_across_fp32", "lookup_pool_across"),
    "missed_rows": ("missed_rows_fp32", "missed_rows_fp16", "missed_rows_bf16", "missed_rows_add"),
    "publish": ("publish_rows", "publish_stores"),
}
# The source that only GPUs that share rows need.
ACROSS = "lookup_across"
