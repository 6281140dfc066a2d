"""`emberline publish FILE.py:FUNCTION` publishes a plain module from the shell: versions, and deltas by comparison."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from emberline.cli.publish import command
from storage import list_deltas, open_delta
from storage.errors import CheckpointError, ConfigError, UnsafeArtifact, Unsupported
from tests.support.plain_ranker import Ranker, check_published

FILE = """
from beside import ROWS
from tests.support.plain_ranker import SAMPLE, Ranker

def make():
    return Ranker(ROWS), SAMPLE

def rounded():
    return Ranker(ROWS), SAMPLE, {"row_types": {"users": "int8"}, "metadata": {"team": "ads"}}

def wrong_option():
    return Ranker(ROWS), SAMPLE, {"row_type": "int8"}

def no_module():
    return SAMPLE, SAMPLE

def fails():
    raise ValueError("no data today")

def asks(path):
    return Ranker(ROWS), SAMPLE

def one():
    return Ranker(ROWS)
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "beside.py").write_text("ROWS = 120\n")
    path = tmp_path / "code" / "ranker_file.py"
    path.write_text(FILE)
    return str(path)


def run(*arguments: object) -> str:
    done = CliRunner().invoke(command, [*map(str, arguments), "--quiet"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def test_only_a_model_is_compared_with(file: str, tmp_path: Path) -> None:
    models = tmp_path / "models"
    run(f"{file}:make", "--repository", models, "--name", "ranker")
    before = sorted(models.rglob("*"))
    with pytest.raises(ConfigError, match=r"is a repository with the models ranker; name one, as --against .*ranker"):
        run(f"{file}:make", "--against", models)
    with pytest.raises(
        ConfigError, match=r"no such model; did you mean 'ranker'\? Its first version is published with"
    ):
        run(f"{file}:make", "--against", models / "rankr")
    with pytest.raises(ConfigError, match=r"no such model\. Its first version"):
        run(f"{file}:make", "--against", tmp_path / "nowhere" / "ranker")
    assert sorted(models.rglob("*")) == before


def test_a_module_is_published_and_then_what_changed(file: str, tmp_path: Path) -> None:
    models = tmp_path / "models"
    assert run(f"{file}:make", "--repository", models, "--name", "m") == f"published {models / 'm' / '1'}"
    model = Ranker()
    model.change([2, 3])
    save_file(model.state_dict(), tmp_path / "new.safetensors", metadata={"format": "pt"})
    against = [f"{file}:make", "--against", models / "m", "--weights", tmp_path / "new.safetensors"]
    assert run(*against) == f"published {models / 'm' / '1' / 'deltas' / '000001'}"
    check_published(model, models / "m")
    assert "nothing changed since" in run(*against)
    model.change([4])
    # As DistributedDataParallel and Lightning save it.
    saved = {"epoch": 3, "state_dict": {f"module.{name}": value for name, value in model.state_dict().items()}}
    torch.save(saved, tmp_path / "new.pt")
    run(f"{file}:make", "--against", models / "m", "--weights", tmp_path / "new.pt")
    delta = open_delta(models / "m" / "1" / "deltas" / "000002")
    assert [shard.ids.tolist() for shard in delta.shards("users")] == [[4]]
    check_published(model, models / "m")


def test_a_version_takes_its_place_where_a_delta_will_not_do(file: str, tmp_path: Path) -> None:
    models = tmp_path / "models"
    run(f"{file}:make", "--repository", models, "--name", "m")
    with pytest.raises(Unsupported, match="rows of the table 'users' are fp32 and are to be int8"):
        run(f"{file}:rounded", "--against", models / "m", "--delta-only")
    said = run(f"{file}:rounded", "--against", models / "m")
    assert f"published {models / 'm' / '2'}, a version: rows of the table 'users' are fp32 and are to be int8" in said
    assert "table users: rows as int8" in said
    assert run(f"{file}:make", "--against", models / "m", "--from", "1.0").startswith("nothing changed since")
    assert list_deltas(models / "m" / "1") == []


@pytest.mark.parametrize(
    ("new", "options", "said"),
    [
        ("{file}:mak", "--name m", "no function 'mak'; did you mean 'make'"),
        ("{file}:wrong_option", "--name m", "no option 'row_type'; did you mean 'row_types'"),
        ("{file}:no_module", "--name m", "the first value is a value of type dict"),
        ("{file}:one", "--name m", "returned a value of type Ranker, expected \\(module, sample_batch\\)"),
        ("{file}:asks", "--name m", "called without arguments, and asks for path"),
        ("{file}:fails", "--name m", "(?s)ValueError: no data today.*ranker_file.py:18 in fails"),
        ("{folder}/no.py:make", "--name m", "there is no file"),
        ("{folder}", "--name m", "--name is for a module"),
        ("{folder}/nothing", "", "neither the folder of a training run nor FILE.py:FUNCTION"),
        ("{file}:make", "", "--name is missing"),
        ("{file}:make", "--name m --delta", "--delta is for a RUN"),
        ("{file}:make", "--name m --delta-only", "--delta-only is for --against"),
        ("{file}:make", "--name m --from 1.0", "--from needs --against"),
        ("{file}:make", "--against {folder}/x/m --version 3", "--version and --against exclude each other"),
        ("{file}:make", "--against {folder}/x/m", "--repository .* is not that of --against"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_was_expected(
    file: str, tmp_path: Path, new: str, options: str, said: str
) -> None:
    names = {"file": file, "folder": str(tmp_path)}
    given = [new.format(**names), "--repository", tmp_path / "models", *options.format(**names).split()]
    # Options that do not go together are refused by the command line itself, with the exit code 2.
    done = CliRunner().invoke(command, [*map(str, given), "--quiet"])
    assert done.exit_code == 2 or isinstance(done.exception, ConfigError)
    assert re.search(said, done.output if done.exit_code == 2 else str(done.exception))
    assert not (tmp_path / "models").exists()


class Payload:
    """Makes a folder when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


def test_weights_that_do_not_fit_name_the_weight(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "w.safetensors"

    def publish(weights: dict[str, torch.Tensor]) -> None:
        path.unlink(missing_ok=True)
        save_file(weights, path)
        run(f"{file}:make", "--repository", tmp_path / "models", "--name", "m", "--weights", path)

    state = Ranker().state_dict()
    with pytest.raises(CheckpointError, match=r"no weight 'top.0.bias'; did you mean 'top.0.bia'"):
        publish({("top.0.bia" if name == "top.0.bias" else name): value for name, value in state.items()})
    with pytest.raises(CheckpointError, match=r"'users.weight' is \[3, 4\], the module's is \[120, 4\]"):
        publish({**state, "users.weight": torch.zeros(3, 4)})
    with pytest.raises(CheckpointError, match="the module has no weight 'more'"):
        publish({**state, "more": torch.zeros(1)})
    path = tmp_path / "w.pt"
    for saved in ({**state, "more": Payload()}, Ranker()):
        torch.save(saved, path)
        with pytest.raises(UnsafeArtifact, match=r"w\.pt: it would import .*nothing was run") as refused:
            run(f"{file}:make", "--repository", tmp_path / "models", "--name", "m", "--weights", path)
        assert "weights_only" not in str(refused.value)
    assert not (tmp_path / "ran").exists()
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(CheckpointError, match="neither a safetensors file nor a state_dict"):
        run(f"{file}:make", "--repository", tmp_path / "models", "--name", "m", "--weights", path)
    assert not (tmp_path / "models").exists()
