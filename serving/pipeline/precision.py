"""The dense graph of a version in the precision that its model is configured with."""

from __future__ import annotations

import logging

import torch

from serving.model_config.options import ModelOptions
from storage.checkpoint import DenseGraph, PublishedVersion
from storage.checkpoint.lowered import LOWERED

logger = logging.getLogger("emberline.serving")


def dense_graph(published: PublishedVersion, options: ModelOptions) -> DenseGraph:
    """A version's graph with its own weights; other weights of it have the same precision. Raises CheckpointError.

    TF32 is no other graph: a GPU rounds the inputs of its products itself, a processor does not.
    """
    graph = published.graph()
    if options.precision not in LOWERED:
        return graph
    return graph.lowered(options.precision)


def warn_if_slow(where: str, precision: str) -> None:
    """Says so when the processor computes in a precision that it has no products of."""
    if precision == "bf16" and not has_bf16_products():
        logger.warning("%s: this processor has no products of bfloat16; fp32 would be faster", where)
    if precision == "fp16":
        logger.warning("%s: products of fp16 are for GPUs; on a processor fp32 would be faster", where)


def has_bf16_products() -> bool:
    """Whether the processor multiplies bfloat16 itself (AVX-512 BF16 or AMX)."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
