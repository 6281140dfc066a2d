"""Checks that every model of the zoo must pass on a GPU, whether simulated or real."""

from __future__ import annotations

import asyncio
import json
import shutil
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from serving import Server, ServerConfig
from serving.engine.devices import FP32_TOLERANCE
from serving.engine.model import LoadedModel
from serving.gpu.driver import Gpus
from serving.pipeline.host import Pipeline
from serving.pipeline.user_side import take_rows
from storage import open_version
from tests.e2e.conftest import Served, rows_of
from tests.e2e.test_combinations import json_request
from tests.simulated_gpu import SimulatedGpus
from tests.support.transports import ask_all, requests_of

KINDS = ("deepfm", "dlrm", "din")
ROWS = 2000
# Tolerances of each precision; the trained models' scores are between 0 and 1.
PRECISIONS = {"fp32": FP32_TOLERANCE, "tf32": 2e-3, "bf16": 2e-2, "fp16": 2e-3}


@contextmanager
def served_on(gpus: Gpus, place: Path, versions: dict[str, Path], **parameters: object) -> Iterator[Server]:
    """Runs a server in this process that serves these versions on the GPUs."""
    for name, version in versions.items():
        folder = place / "models" / name
        shutil.copytree(version, folder / "1")
        lines = [
            'backend: "emberline"',
            "instance_group [{ kind: KIND_GPU count: 2 }]",
            "dynamic_batching { preferred_batch_size: [ 64 ] }",
        ]
        lines += [
            f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in parameters.items()
        ]
        (folder / "config.pbtxt").write_text("\n".join(lines))
    config = ServerConfig(
        model_repository=place / "models",
        store=place / "store",
        http_port=0,
        grpc_port=0,
        metrics_port=0,
        open_admin=True,
    )
    with Server(config, gpus=gpus) as server:
        index = server.repository.index()
        assert [(entry.state, entry.reason) for entry in index] == [("READY", "")] * len(versions)
        yield server
    for driver in gpus.drivers if isinstance(gpus, SimulatedGpus) else ():
        driver.enter_thread()
        driver.finish()
        assert not driver.errors
        assert driver.memory().device == driver.memory().pinned == 0


def check_every_transport(gpus: Gpus, models: dict[str, Served], place: Path, precision: str, tolerance: float) -> None:
    """Returns the trainer's scores over HTTP and gRPC."""
    versions = {models[kind].name: models[kind].version for kind in KINDS}
    with served_on(gpus, place, versions, precision=precision, precision_tolerance=0.05) as server:
        url, grpc = f"http://127.0.0.1:{server.http_port}", f"127.0.0.1:{server.grpc_port}"
        for kind in KINDS:
            served = models[kind]
            for transport, scores in ask_all(url, grpc, served.name, requests_of(url, served.name, served.data, ROWS)):
                difference = np.abs(scores.astype(np.float64) - served.scores[:ROWS]).max()
                assert difference <= tolerance, f"{kind}, {transport}: {difference}"
                assert precision in ("fp32", "tf32") or difference > 0, "nothing was computed in another precision"
        ran = [
            sum(loaded.parts.devices.models[index].counters.batches.values())
            for loaded in server.repository.loaded()
            for index in loaded.parts.devices.models
        ]
        assert len(ran) == len(KINDS) * len(gpus.infos)
        assert min(ran) > 0
        assert all(not d.given_up for each in server.repository.loaded() for d in each.parts.devices.models.values())


def check_every_size(gpus: Gpus, models: dict[str, Served], place: Path, tolerance: float) -> None:
    """Asserts that batches of each bucket, full and padded, get the processor's scores."""
    versions = {models[kind].name: models[kind].version for kind in KINDS}
    with served_on(gpus, place, versions) as server:
        for loaded in server.repository.loaded():
            assert isinstance(loaded, LoadedModel)
            parts, snapshot = loaded.parts, loaded.history.current
            requests = open_version(versions[loaded.name]).golden()
            features = parts.features(requests.columns, requests.batch)
            gpu = parts.devices.first()
            assert gpu is not None
            sizes = [bucket.size for bucket in gpu.model.buckets.all]
            assert sizes[-1] == loaded.signature.max_batch_size
            rng = np.random.default_rng(1)
            for size in sizes[:9]:
                for rows in sorted({size, max(1, size - 1), size // 2 + 1}):
                    batch = take_rows(features, rng.integers(0, requests.batch, rows))
                    by_gpu, by_processor = (parts.score_once(batch, snapshot, way) for way in (gpu, parts.processor))
                    for one, other in zip(by_gpu, by_processor, strict=True):
                        assert np.abs(one - other).max() <= tolerance, (loaded.name, rows)
            assert isinstance(parts.processor, Pipeline)


def check_one_user(gpus: Gpus, served: Served, place: Path, tolerance: float) -> None:
    """Asserts that one row of a user stands for all of that user's items and crosses the bus once."""
    with served_on(gpus, place, {served.name: served.version}) as server:
        url = f"http://127.0.0.1:{server.http_port}/v2/models/{served.name}/infer"
        rows = [dict(row) for row in rows_of(served.data, 40)]
        for row in rows:
            row["user"] = rows[0]["user"]

        def ask(once: bool, part: list[dict[str, object]]) -> np.ndarray:
            body = json_request(part, once=once, priority=0, timeout_us=0)
            with urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=60) as answer:
                return np.array(json.load(answer)["outputs"][0]["data"])

        device = next(iter(server.repository.loaded())).parts.devices.models[0]
        before = device.counters.copied_bytes
        apart = ask(False, rows)
        whole_bytes = device.counters.copied_bytes - before
        together = ask(True, rows)
        sided_bytes = device.counters.copied_bytes - before - whole_bytes
        assert np.abs(together - apart).max() <= tolerance
        assert sided_bytes < whole_bytes
        for count in (1, 2, 7, 33):
            assert np.abs(ask(True, rows[:count]) - apart[:count]).max() <= tolerance


def check_plain(gpus: Gpus, version: Path, place: Path, tolerance: float) -> None:
    """A module that was trained without us."""
    with served_on(gpus, place, {"plain": version}) as server:
        loaded = next(iter(server.repository.loaded()))
        golden = open_version(version).golden()
        result = asyncio.run(loaded.infer(golden.columns, golden.batch))
        name = loaded.signature.outputs[0].name
        assert np.abs(result.outputs[0] - golden.outputs[name]).max() <= tolerance
