"""Runs a dense graph as a few fused steps by kernels of our own: storage/native/dense.

`lower` turns a graph into steps, `passes` rewrite them, `forward` binds them to weights and runs them.
"""

from storage.checkpoint.fused.forward import fused_function

__all__ = ["fused_function"]
