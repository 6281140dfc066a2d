"""The table of the operators of ONNX that are converted."""

from __future__ import annotations

from trainer.converting import (  # noqa: F401 - each registers its operators
    onnx_elementwise,
    onnx_layers,
    onnx_recurrent,
    onnx_reductions,
    onnx_shapes,
)
from trainer.converting.onnx_call import OPERATORS

__all__ = ["OPERATORS"]
