"""Asks a server for the outputs of published models, and compares them with torch's. B rows of a request."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import numpy as np
import torch
import tritonclient.http as triton

from benchmarks.libraries.trained import Batch, Trained, count_of, rows_of
from storage.errors import InvalidInput
from trainer.publishing.dense_half import named_outputs

#: How far an answer may be from torch's, times the largest of the output if that is above 1.
TOLERANCE = 1e-5
#: Rows of the requests that every model is asked.
BATCH_SIZES = (1, 7, 64, 184)

Array = np.ndarray[Any, np.dtype[Any]]


def largest_difference(url: str, name: str, trained: Trained) -> float:
    """Asks for all fresh rows, in requests of BATCH_SIZES rows, by KServe v2 in binary over HTTP.

    Returns the largest difference from the module's own outputs, divided by the largest of the output if that is above
    1. Raises InvalidInput where the answer has another shape.
    """
    inputs = _metadata(url, name)["inputs"]
    worst, start = 0.0, 0
    with triton.InferenceServerClient(url.removeprefix("http://"), network_timeout=60.0) as client, torch.no_grad():
        for size in BATCH_SIZES:
            rows = rows_of(trained.fresh, start, start + size)
            wanted = _by_torch(trained, start, size)
            start += size
            answer = client.infer(name, [_input(entry, rows) for entry in inputs])
            for output, tensor in wanted.items():
                expected = tensor.numpy().reshape(size, -1)
                got = answer.as_numpy(output).reshape(size, -1)
                if got.shape != expected.shape:
                    raise InvalidInput(f"{name}: {output} has the shape {got.shape}, torch's {expected.shape}")
                largest = max(1.0, float(np.abs(expected).max(initial=0.0)))
                worst = max(worst, float(np.abs(got - expected).max(initial=0.0)) / largest)
    assert start == count_of(trained.fresh)
    return worst


def _by_torch(trained: Trained, start: int, size: int) -> dict[str, torch.Tensor]:
    """Returns the module's outputs for some fresh rows, by name."""
    try:
        return named_outputs(trained.module(_copied(rows_of(trained.fresh, start, start + size))))
    except (IndexError, RuntimeError):
        # Some modules take no single row: then it is scored beside the next one.
        if size != 1:
            raise
        both = named_outputs(trained.module(_copied(rows_of(trained.fresh, start, start + 2))))
        return {name: value[:1] for name, value in both.items()}


def _metadata(url: str, name: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"{url}/v2/models/{name}", timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        raise InvalidInput(f"{name}: {error.read().decode(errors='replace')}") from None
    return found


def _copied(rows: Batch) -> Batch:
    # Some modules write into the tensors that they are given.
    return rows.clone() if isinstance(rows, torch.Tensor) else {name: value.clone() for name, value in rows.items()}


def _input(entry: dict[str, Any], rows: Batch) -> Any:
    tensor = rows if isinstance(rows, torch.Tensor) else rows[entry["name"]]
    values = tensor.numpy().reshape(len(tensor), -1)
    made = triton.InferInput(entry["name"], list(values.shape), entry["datatype"])
    made.set_data_from_numpy(values)
    return made
