"""The models that stand in for Triton's own, for its example clients (tests/external/triton_examples.py)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton

from serving import Server
from tests.external.triton_examples import EXAMPLES, Example, main, run_one, table
from tests.external.triton_models import write_repository
from tests.integration.clients.conftest import server_config


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("triton")
    write_repository(folder / "repository")
    with Server(server_config(folder / "repository", folder / "store")) as running:
        yield running


def test_simple_adds_and_subtracts(stand_ins: Server) -> None:
    left, right = np.arange(32, dtype=np.int32).reshape(2, 16), np.full((2, 16), -7, np.int32)
    inputs = []
    for name, values in (("INPUT0", left), ("INPUT1", right)):
        inputs.append(triton.InferInput(name, [2, 16], "INT32"))
        inputs[-1].set_data_from_numpy(values)
    with triton.InferenceServerClient(f"127.0.0.1:{stand_ins.grpc_port}") as client:
        result = client.infer("simple", inputs)
        assert client.get_model_config("simple").config.max_batch_size == 8
    assert result.as_numpy("OUTPUT0").dtype == np.int32
    assert np.array_equal(result.as_numpy("OUTPUT0"), left + right)
    assert np.array_equal(result.as_numpy("OUTPUT1"), left - right)


def test_an_example_is_judged_by_its_exit_code(stand_ins: Server, tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(
        "import sys, tritonclient.http as t\nassert t.InferenceServerClient(sys.argv[2]).is_model_ready('simple')\n"
    )
    (tmp_path / "bad.py").write_text("import sys\nprint('FAILED : all of it')\nprint('bye')\nsys.exit(1)\n")
    outcomes = [
        run_one(tmp_path, example, stand_ins.http_port)
        for example in (Example("good"), Example("bad"), Example("bad", differs="known"), Example("gone"))
    ]
    assert [outcome.result for outcome in outcomes] == ["passed", "failed", "differs", "skipped"]
    assert outcomes[1].reason == "FAILED : all of it"
    assert table(outcomes).endswith("1 passed, 1 failed, 1 differs, 1 skipped")


def test_the_command_wants_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["triton_examples", "--examples", str(tmp_path / "nothing")])
    with pytest.raises(SystemExit):
        main()
    assert "is not a folder" in capsys.readouterr().err


def test_every_example_is_listed_once() -> None:
    assert len({example.name for example in EXAMPLES}) == len(EXAMPLES)
