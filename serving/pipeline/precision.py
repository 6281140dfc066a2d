"""Makes the dense graph of a version in the precision that its model is configured with."""

from __future__ import annotations

import logging

import torch

from serving.model_config.options import ModelOptions
from storage.checkpoint import DenseGraph, PublishedVersion
from storage.checkpoint.lowered import LOWERED

logger = logging.getLogger("emberline.serving")


def dense_graph(published: PublishedVersion, options: ModelOptions) -> DenseGraph:
    """Returns a version's graph with its own weights. Raises CheckpointError.

    Other weights of the graph have the same precision. TF32 needs no other graph: a GPU rounds the inputs of its
    products itself, a processor does not round them.
    """
    graph = published.graph()
    if options.precision not in LOWERED:
        return graph
    return graph.lowered(options.precision)


def warn_if_slow(where: str, precision: str) -> None:
    """Logs a warning when the processor has no products of the precision that it computes in."""
    if precision == "bf16" and not has_bf16_products():
        logger.warning("%s: this processor has no products of bfloat16; fp32 would be faster", where)
    if precision == "fp16":
        logger.warning("%s: products of fp16 are for GPUs; on a processor fp32 would be faster", where)


def has_bf16_products() -> bool:
    """Returns whether the processor multiplies bfloat16 itself (AVX-512 BF16 or AMX)."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
