"""Measures the cost of a request of one row in our own code, stage by stage, beside lookups and the dense graph.

All stages run in one process. 32 requests are under way, so that the fixed cost of a batch is shared as under load;
no network is involved.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.dlrm_world import DlrmWorld
from loadtest.bodies import binary_body
from serving.config import ServerConfig
from serving.engine.model import LoadedModel
from serving.protocol.columns import to_columns
from serving.protocol.routing import routing_of_headers
from serving.protocol.v2 import decode_request, encode_response, read_header
from serving.repository.model_repository import ModelRepository
from storage.features import Column

TOGETHER = 32
_PIECES, _PIECE_S = 7, 0.03


class Stages:
    """A loaded DLRM that is called in process; a context manager."""

    def __init__(self, folder: Path) -> None:
        world = DlrmWorld(folder / "stages", folder / "stages.safetensors")
        config = ServerConfig(model_repository=folder / "stages", store=folder / "stages-store")
        self._repository = ModelRepository(config)
        self._repository.load_all()
        self._body, self._json_bytes = binary_body(world.request(1))

    def microseconds(self) -> dict[str, float]:
        """Returns the median cost of each stage for one request."""
        torch.set_num_threads(1)
        raw = [
            (b"host", b"127.0.0.1:8000"),
            (b"content-length", str(len(self._body)).encode()),
            (b"inference-header-content-length", str(self._json_bytes).encode()),
        ]
        model = self._repository.get("dlrm", "", "")
        assert isinstance(model, LoadedModel)
        header = read_header(self._body, self._json_bytes)
        regions = self._repository.regions
        request = decode_request(model.signature, header, regions)
        columns, rows = to_columns(model.signature, request.tensors)
        pipeline = model.parts.pipeline(None)
        snapshot = model.history.current
        ((features, _),) = pipeline.features([(columns, rows)] * TOGETHER)
        scores = pipeline.score([features], snapshot)
        of_one = [values[:1] for values in scores.outputs]
        parameters = {"snapshot": snapshot.id, "sequence": 0}
        found = {
            "headers": _median(lambda: routing_of_headers(dict(raw))),
            "model, load": _median(lambda: self._repository.get("dlrm", "", "").check_load()),
            "JSON": _median(lambda: read_header(self._body, self._json_bytes)),
            "tensors": _median(lambda: decode_request(model.signature, header, regions)),
            "columns": _median(lambda: to_columns(model.signature, request.tensors)),
            "features": _median(lambda: pipeline.features([(columns, rows)] * TOGETHER)) / TOGETHER,
            "answer": _median(lambda: encode_response(model.signature, "1", request, of_one, parameters, regions)),
        }
        computed = _median(lambda: pipeline.score([features], snapshot)) / TOGETHER
        whole = _under_way(model, columns, rows)
        found["queue, batch, hand-over"] = max(0.0, whole - computed - found["features"])
        found["(lookup and graph)"] = computed
        return found

    def close(self) -> None:
        """Closes the model."""
        self._repository.close(10.0)

    def __enter__(self) -> Stages:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _median(work: Callable[[], Any]) -> float:
    """Returns the microseconds of a call."""
    for _ in range(20):
        work()
    pieces = []
    for _ in range(_PIECES):
        began, calls = time.perf_counter(), 0
        while (taken := time.perf_counter() - began) < _PIECE_S:
            work()
            calls += 1
        pieces.append(taken / calls * 1e6)
    return float(np.median(pieces))


def _under_way(model: LoadedModel, columns: dict[str, Column], rows: int) -> float:
    """Returns the microseconds from a call of the model to its answer, with TOGETHER requests under way."""

    async def rounds(count: int) -> None:
        async def one() -> None:
            for _ in range(count):
                await model.infer(columns, rows)

        await asyncio.gather(*(one() for _ in range(TOGETHER)))

    pieces = []
    with asyncio.Runner() as runner:
        runner.run(rounds(20))
        for _ in range(_PIECES):
            began = time.perf_counter()
            runner.run(rounds(30))
            pieces.append((time.perf_counter() - began) / (30 * TOGETHER) * 1e6)
    return float(np.median(pieces))
