"""Two models, one with a damaged store: the other is served undisturbed, and the damaged store is filled again."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.delta_world import DENSE, LENGTH, DeltaWorld
from loadtest.bodies import json_body
from loadtest.rows import Tensor
from tests.support.server_process import START_TIMEOUT_S, ServerProcess
from tests.support.small_model import small_model

ROWS = 8_000


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes models/ with two models of one version.

    `whole` holds its rows in DRAM; `whole_tenth` serves the same version mostly from the disk.
    """
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


def ask(server: ServerProcess, model: str) -> tuple[int, Any]:
    request = urllib.request.Request(
        f"{server.url}/v2/models/{model}/infer", BODY, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def ask_until_answered(server: ServerProcess, model: str, want: Any) -> int:
    """Sends requests until there is an answer, which must be right; returns how often the store could not give one."""
    deadline = time.monotonic() + START_TIMEOUT_S
    failures = 0
    while True:
        status, answer = ask(server, model)
        if status == 200:
            assert answer["outputs"][0]["data"] == want["outputs"][0]["data"], "a wrong answer from damaged rows"
            return failures
        assert (status, "damaged" in answer["error"]) == (503, True), (status, answer)
        assert time.monotonic() < deadline, server.log.read_text()
        failures += 1
        time.sleep(0.02)


def files_of_rows(store: Path) -> list[Path]:
    """Returns the files of the store that hold rows, largest first."""
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
def test_a_damaged_store_harms_its_own_model_alone_and_is_filled_again(
    place: Path, tmp_path: Path, damage: Any
) -> None:
    store = tmp_path / "store"
    with ServerProcess(place / "models", store, tmp_path / "first.log") as server:
        status, want = ask(server, "whole")
        assert status == 200
        status, small = ask(server, "whole_tenth")
        assert status == 200
        assert small["outputs"][0]["data"] == want["outputs"][0]["data"]
    damage(files_of_rows(store / "whole_tenth")[0])
    with ServerProcess(place / "models", store, tmp_path / "second.log") as server:
        assert ask(server, "whole")[1]["outputs"] == want["outputs"]
        assert ask_until_answered(server, "whole_tenth", want) == 0
    assert "is filled again from published files" in (tmp_path / "second.log").read_text()


def test_pages_damaged_below_a_running_server_are_no_answer_until_another_store_has_taken_over(
    place: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    with ServerProcess(place / "models", store, tmp_path / "server.log") as server:
        want = ask(server, "whole")[1]
        for path in files_of_rows(store / "whole_tenth"):
            with path.open("r+b") as file:  # in place: the server has it open
                for at in range(4096 + 99, path.stat().st_size, 4096):
                    file.seek(at)
                    byte = file.read(1)[0]
                    file.seek(at)
                    file.write(bytes([byte ^ 1]))
        assert ask_until_answered(server, "whole_tenth", want) > 0
        assert ask(server, "whole")[1]["outputs"] == want["outputs"]
    assert "took the place of the damaged" in (tmp_path / "server.log").read_text()
