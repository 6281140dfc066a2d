"""Encodes signatures for front ends."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

from serving.protocol.signature import ModelSignature, OutputSignature, TensorSignature
from storage.features import InputSpec


def signature_to_wire(signature: ModelSignature) -> dict[str, Any]:
    """Encodes a signature as JSON values."""
    return {
        "model": signature.model,
        "raw": [entry.model_dump(mode="json") for entry in signature.raw],
        "outputs": [
            [output.name, output.dtype, list(output.dims), list(output.labels)] for output in signature.outputs
        ],
        "max_batch_size": signature.max_batch_size,
        # Tensors that no raw input stands for.
        "tensors": [] if signature.raw else [astuple(entry) for entry in signature.inputs.values()],
    }


def signature_from_wire(content: dict[str, Any]) -> ModelSignature:
    """Decodes the signature that `signature_to_wire` was given."""
    return ModelSignature(
        content["model"],
        [InputSpec.model_validate(entry) for entry in content["raw"]],
        [OutputSignature(name, dtype, tuple(dims), tuple(labels)) for name, dtype, dims, labels in content["outputs"]],
        content["max_batch_size"],
        tensors=[TensorSignature(name, dtype, tuple(dims), *rest) for name, dtype, dims, *rest in content["tensors"]],
    )
