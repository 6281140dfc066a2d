"""The dense graph of a version in the precision that its model is configured with."""

from __future__ import annotations

import logging

import torch

from serving.engine.options import ModelOptions
from storage.checkpoint import DenseGraph, PublishedVersion

logger = logging.getLogger("emberline.serving")


def dense_graph(published: PublishedVersion, options: ModelOptions) -> DenseGraph:
    """A version's graph with its own weights; other weights of it have the same precision. Raises CheckpointError."""
    graph = published.graph()
    if options.precision == "fp32":
        return graph
    if not has_bf16_products():
        logger.warning("%s: this processor has no products of bfloat16; fp32 would be faster", published.path)
    return graph.lowered()


def has_bf16_products() -> bool:
    """Whether the processor multiplies bfloat16 itself (AVX-512 BF16 or AMX)."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
