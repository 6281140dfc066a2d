"""Models of other libraries are published as docs/published-models.md says, and docs/torch-libraries.md works.

The libraries are installed under build/ by pip; where that cannot be done the tests are skipped with pip's reason.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from benchmarks.libraries.environment import make
from benchmarks.libraries.page import PAGE, stated
from storage.errors import Unavailable
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "torch-libraries.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL) for line in block.splitlines()]
#: One of each kind of module; the guide has torch-rechub's DeepFM.
TRIED = ("torch-rechub/DIN", "deepctr-torch/DIN", "recbole/DeepFM", "recbole/SASRec")


@pytest.fixture(scope="module")
def libraries() -> Path:
    try:
        return make()
    except Unavailable as error:
        pytest.skip(str(error))


def test_the_table_says_what_is_true(libraries: Path, tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    only = [word for name in TRIED for word in ("--only", name)]
    done = run("-m", "benchmarks.libraries", *only, "--json", str(results))
    assert done.returncode == 0, done.stdout + done.stderr
    found = {f"{trial['library']}/{trial['name']}": trial["state"] for trial in json.loads(results.read_text())}
    said = stated(PAGE.read_text(encoding="utf-8"))
    assert {name: state == "as torch" for name, state in found.items()} == {name: said[name] == "yes" for name in TRIED}


def test_the_table_has_all_models(libraries: Path) -> None:
    done = run("-m", "benchmarks.libraries", "--list")
    assert done.returncode == 0, done.stderr
    # DeepCTR-Torch prints a sentence of its own.
    listed = [line for line in done.stdout.splitlines() if " " not in line]
    assert list(stated(PAGE.read_text(encoding="utf-8"))) == listed


def test_the_guide_shows_what_its_example_has() -> None:
    shown, _ = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    assert shown in (ROOT / "docs" / "examples" / "libraries" / "film_ranker.py").read_text(encoding="utf-8")


def test_the_guide_works_as_it_is_written(libraries: Path, tmp_path: Path) -> None:
    for name in ("docs", "trainer"):
        (tmp_path / name).symlink_to(ROOT / name)
    assert shlex.split(COMMANDS[0])[-1] in (libraries / "packages.txt").read_text(encoding="utf-8").splitlines()
    printed: list[str] = []
    with serving(tmp_path) as server, ExitStack() as stack:
        load: subprocess.Popen[str] | None = None
        for line in COMMANDS[1:]:
            program, *words = shlex.split(line)
            behind = words[-1] == "&"
            arguments = ["-m", "emberline", *words] if program == "emberline" else words[: len(words) - behind]
            if words[0] == "serve":
                assert words[1:] == ["--model-repository", "build/models", "&"]
                server.append(ServerProcess(tmp_path / "build" / "models", tmp_path / "store", tmp_path / "log"))
                continue
            if "ask_ranker" in line:
                arguments += ["--url", server[0].url.removeprefix("http://")]
            if "loadtest" in line:
                begin = begun(*arguments, "--url", server[0].url, "--grpc", server[0].grpc, folder=tmp_path)
                load = stack.enter_context(begin)  # ends with the test, also where a later command fails
                continue
            done = run(*arguments, folder=tmp_path)
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
            printed.append(done.stdout)
        assert load is not None
        told, _ = load.communicate(timeout=120)
        assert load.returncode == 0, told
    answers = [re.search(r"snapshot (\S+), largest difference from torch (\S+)", text) for text in printed]
    found = [(answer[1], float(answer[2])) for answer in answers if answer is not None]
    assert [snapshot for snapshot, _ in found] == ["1.0", "1.1"]
    assert max(difference for _, difference in found) < 1e-6


@contextmanager
def serving(folder: Path) -> Iterator[list[ServerProcess]]:
    started: list[ServerProcess] = []
    try:
        yield started
    finally:
        for server in started:
            server.close()


def environment() -> dict[str, str]:
    paths = [str(ROOT), str(ROOT / "build" / "libraries")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200"}


def run(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment(),
        cwd=folder,
        check=False,
    )


def begun(*arguments: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(),
        cwd=folder,
    )
