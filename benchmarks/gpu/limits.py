"""Measures the best that a GPU reaches with rows whose numbers are known: plain kernels and torch's operators."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu.device import Gpu
from benchmarks.gpu.replica import Lookups
from storage.hbm.device import Stream
from storage.hbm.kernel_sources import THREADS
from storage.hbm.kernels import OPTIONS, Kernels, compile_source, gpu_arch

SOURCE = Path(__file__).with_name("limits.cu")
NAMES = ("limit_gather", "limit_pool")
PIECE_BYTES = 16
# Enough for every multiprocessor of a large GPU; threads stride over the rest.
_BLOCKS_AT_MOST = 4096

Launch = Callable[[int], None]


class PlainKernels:
    """The plain kernels of one GPU; on a simulated GPU torch computes the same."""

    def __init__(self, gpu: Gpu) -> None:
        """Compiles them. Raises ConfigError without CuPy or NVRTC."""
        self._gpu = gpu
        self._kernels: Kernels | None = None
        self._functions: dict[str, int] = {}
        if gpu.is_simulated:
            return
        info = gpu.driver.info
        cubin, _ = compile_source(SOURCE.stem, gpu_arch(info.capability), {SOURCE.name: SOURCE.read_bytes()}, OPTIONS)
        # Imported as an attribute: there is no module of this name.
        from cupy.cuda import driver

        module = driver.moduleLoadData(cubin)
        self._functions = {name: int(driver.moduleGetFunction(module, name)) for name in NAMES}
        self._kernels = Kernels(info.index, info.capability)

    def launch(self, lookups: Lookups) -> Launch:
        """Returns a launch that writes out or sums the same rows as these lookups."""
        shape = lookups.rows.shape
        shift = (shape.row_bytes // PIECE_BYTES).bit_length() - 1
        slab, output = lookups.rows.slab, lookups.output
        if self._kernels is None:
            return index_select(lookups) if lookups.length is None else embedding_bag(lookups)

        def gather(slots: Tensor) -> None:
            values = (slab.data_ptr(), slots.data_ptr(), output.data_ptr(), lookups.ids, shift)
            self._put("limit_gather", lookups.ids << shift, values, lookups.stream)

        def pool(slots: Tensor) -> None:
            sizes = (lookups.bags, lookups.length or 1, shift)
            values = (slab.data_ptr(), slots.data_ptr(), output.data_ptr(), *sizes)
            self._put("limit_pool", lookups.bags << shift, values, lookups.stream)

        return lookups.plain(gather if lookups.length is None else pool)

    def _put(self, name: str, threads: int, values: tuple[int, ...], stream: Stream) -> None:
        assert self._kernels is not None
        blocks = min(max(1, -(-threads // THREADS)), _BLOCKS_AT_MOST)
        self._kernels.launch(name, self._functions[name], (blocks, 1), values, stream.raw)


def index_select(lookups: Lookups) -> Launch:
    """Returns a launch of torch's index_select, as nn.Embedding calls it."""
    return lookups.plain(lambda slots: torch.index_select(lookups.rows.values, 0, slots, out=lookups.values))


def embedding_bag(lookups: Lookups) -> Launch:
    """Returns a launch of torch's nn.EmbeddingBag, mode sum; its output is of the row type."""
    rows, length = lookups.rows.values, lookups.length
    assert length is not None

    def bag(slots: Tensor) -> Tensor:
        with torch.inference_mode():
            return functional.embedding_bag(slots.view(-1, length), rows, mode="sum")

    return lookups.plain(bag)


def fbgemm(lookups: Lookups, free_bytes: int) -> tuple[Launch, int]:
    """Returns a launch of FBGEMM's table-batched embeddings, in memory of their own, and the rows that fit there.

    Raises ImportError where FBGEMM is not installed, or not for a GPU.
    """
    ops = importlib.import_module("fbgemm_gpu.split_table_batched_embeddings_ops_inference")
    common = importlib.import_module("fbgemm_gpu.split_embedding_configs")
    training = importlib.import_module("fbgemm_gpu.split_table_batched_embeddings_ops_common")
    shape, length = lookups.rows.shape, lookups.length
    assert length is not None
    rows = min(lookups.rows.index.rows + 1, int(free_bytes * 0.8) // shape.row_bytes)
    kinds = {"fp32": common.SparseType.FP32, "fp16": common.SparseType.FP16}
    spec = ("t", rows, shape.dim, kinds[shape.row_type], training.EmbeddingLocation.DEVICE)
    device = lookups.rows.slab.device
    table = ops.IntNBitTableBatchedEmbeddingBagsCodegen([spec], device=device, output_dtype=common.SparseType.FP32)
    table.initialize_weights()
    offsets = torch.arange(0, lookups.ids + 1, length, dtype=torch.int32, device=device)
    indices = {slots.data_ptr(): (slots % rows).int() for slots in lookups.slots}
    return lookups.plain(lambda slots: table.forward(indices[slots.data_ptr()], offsets)), rows
