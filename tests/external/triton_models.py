"""Writes the models that Triton's example clients ask for, as far as this server can express them.

`simple` (two INT32[16], their sum and difference) is a published version: a graph over two dense features, without a
table. What gives back what it gets is a config.pbtxt with `backend: "identity"`.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch

from storage import Golden, GraphInput, GraphOutput, write_version
from storage.features import Column, FeatureSpec

WIDTH, GOLDEN = 16, 256
# Triton's repository of examples; `model_control` counts it. What is not listed here cannot be said (see NOT_HERE).
IDENTITIES = {
    "simple_identity": ("TYPE_STRING", 8, [-1]),
    "custom_identity_int32": ("TYPE_INT32", 8, [-1]),
}
NOT_HERE = {
    "simple_string": "adds numbers that are written as strings, and answers in strings; a graph's outputs are numbers",
    "simple_int8": "INT8 in and out; a graph's outputs are FP32, FP64, INT32, INT64 or BOOL",
    "simple_sequence": "keeps state between the requests of a sequence",
    "simple_dyna_sequence": "keeps state between the requests of a sequence",
    "simple_string_sequence": "keeps state between the requests of a sequence",
    "repeat_int32": "decoupled: many answers to one request",
    "square_int32": "decoupled: many answers to one request",
    "densenet_onnx": "an image model: tensors of rank 4, an ONNX file",
    "preprocess_inception_ensemble": "an ensemble of image models",
}


class AddSub(torch.nn.Module):
    """Returns the sum as OUTPUT0 and the difference as OUTPUT1."""

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        left, right = inputs["left"], inputs["right"]
        return {"OUTPUT0": (left + right).to(torch.int32), "OUTPUT1": (left - right).to(torch.int32)}


def write_repository(repository: Path) -> None:
    """Writes every model that can be expressed."""
    publish_simple(repository / "simple")
    for name, (dtype, batch, dims) in IDENTITIES.items():
        (repository / name / "1").mkdir(parents=True)
        tensors = "".join(
            f'{side} [ {{ name: "{side.upper()}0" data_type: {dtype} dims: {dims} }} ]\n'
            for side in ("input", "output")
        )
        text = f'name: "{name}"\nbackend: "identity"\nmax_batch_size: {batch}\n{tensors}'
        (repository / name / "config.pbtxt").write_text(text)


def publish_simple(model_dir: Path) -> None:
    """Publishes `simple`.

    Integers pass through float32, which holds them exactly up to 2**24.
    """
    names = {"left": "INPUT0", "right": "INPUT1"}
    spec = FeatureSpec.model_validate(
        {
            "inputs": [{"name": name, "dtype": "INT32", "width": WIDTH} for name in names.values()],
            "features": [
                {"name": name, "inputs": [name], "output": "dense", "group": group} for group, name in names.items()
            ],
        }
    )
    module = AddSub().eval()
    sample = {group: torch.zeros(2, WIDTH) for group in names}
    batch = torch.export.Dim("batch", min=1, max=1024)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(module, (sample,), dynamic_shapes=({name: {0: batch} for name in sample},))
    rng = np.random.default_rng(1)
    raw = {group: rng.integers(-1000, 1000, (GOLDEN, WIDTH), np.int32) for group in names}
    outputs = module({group: torch.from_numpy(values.astype(np.float32)) for group, values in raw.items()})
    columns = {names[group]: Column("INT32", GOLDEN, WIDTH, values.ravel()) for group, values in raw.items()}
    write_version(
        model_dir,
        spec=spec,
        version=None,
        tables=[],
        graph=program,
        graph_inputs=[GraphInput(name=group, kind="dense", source=group, shape=(-1, WIDTH)) for group in names],
        graph_outputs=[GraphOutput(name=name, shape=(-1, WIDTH), dtype="INT32") for name in outputs],
        golden=Golden(columns, GOLDEN, {name: values.numpy() for name, values in outputs.items()}, 1e-6),
        max_batch_size=8,
    )
