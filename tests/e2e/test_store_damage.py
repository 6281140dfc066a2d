"""Two models, one of whose stores is damaged: the other is served as if nothing were, and the damage is named."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.delta_world import DENSE, LENGTH, DeltaWorld
from emberline.quickstart.server import START_TIMEOUT_S, ServerProcess
from emberline.quickstart.small import small_model
from loadtest.bodies import json_body
from loadtest.rows import Tensor

ROWS = 8_000


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """models/: `whole` holds its rows in DRAM, `whole_tenth` serves the same version mostly from the disk."""
    place = tmp_path_factory.mktemp("damage")
    world = DeltaWorld(place / "models", "whole", ROWS)
    small_model(place / "models", "whole", world.version, dram_bytes=20_000)
    return place


BODY = json_body(
    [
        Tensor("items", "INT64", np.random.default_rng(1).integers(0, ROWS, (100, LENGTH))),
        Tensor("dense", "FP32", np.random.default_rng(2).standard_normal((100, DENSE)).astype(np.float32)),
    ]
)


class PartlyReady(ServerProcess):
    """A server that is never ready as a whole: it counts as started when one model answers."""

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{self.url}/v2/models/whole/ready", timeout=5).close()
                return
            time.sleep(0.1)
        raise AssertionError(self.log.read_text())


def ask(server: ServerProcess, model: str) -> tuple[int, Any]:
    request = urllib.request.Request(
        f"{server.url}/v2/models/{model}/infer", BODY, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def index(server: ServerProcess) -> dict[str, dict[str, str]]:
    request = urllib.request.Request(f"{server.url}/v2/repository/index", b"{}", {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return {entry["name"]: entry for entry in json.loads(answer.read())}


def settled(server: ServerProcess, model: str) -> dict[str, str]:
    """The model's entry of the index, when it is loaded or refused."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        entry = index(server)[model]
        if entry["state"] != "LOADING":
            return entry
        time.sleep(0.05)
    raise AssertionError(f"{model} is loading for ever: {server.log.read_text()}")


def files_of_rows(store: Path) -> list[Path]:
    """Those of the store that hold rows, largest first."""
    found = [path for path in store.rglob("*") if path.suffix in (".sst", ".pages")]
    return sorted(found, key=lambda path: path.stat().st_size, reverse=True)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for place in range(len(data) // 8, len(data) // 2, 4096):
        data[place] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize("damage", [flip, cut])
def test_a_damaged_store_harms_its_own_model_alone(place: Path, tmp_path: Path, damage: Any) -> None:
    store = tmp_path / "store"
    with ServerProcess(place / "models", store, tmp_path / "first.log") as server:
        status, want = ask(server, "whole")
        assert status == 200
        status, small = ask(server, "whole_tenth")
        assert status == 200
        assert small["outputs"][0]["data"] == want["outputs"][0]["data"]
    damage(files_of_rows(store / "whole_tenth")[0])
    with PartlyReady(place / "models", store, tmp_path / "second.log") as server:
        assert ask(server, "whole")[1]["outputs"] == want["outputs"]
        state = settled(server, "whole_tenth")
        status, answer = ask(server, "whole_tenth")
        if status == 200:
            assert answer["outputs"] == want["outputs"], "a wrong answer from damaged rows"
        else:
            assert status == 503
            assert str(store / "whole_tenth") in state["reason"], f"the damage is not named: {state}"
            assert state["reason"] in answer["error"]
        assert ask(server, "whole")[1]["outputs"] == want["outputs"]
