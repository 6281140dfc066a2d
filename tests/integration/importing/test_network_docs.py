"""The commands of docs/importing-networks.md, docs/proving.md and docs/guides/from-triton.md run as written."""

from __future__ import annotations

import re
import shlex
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from benchmarks.peers import PeerMissingError
from benchmarks.peers.triton import TritonProcess
from emberline.cli.frame import main
from emberline.proving.batches import rows_of
from emberline.proving.proof_text import body
from tests.integration.serving.test_prove import TRITON_MODEL
from tests.support.importing.written import write_hps
from tests.support.server_process import ServerProcess
from trainer.converting.onnx_operators import OPERATORS

DOCS = Path(__file__).parents[3] / "docs"
NAMES = ["user", "item", "dense"]


def commands(text: str) -> list[list[str]]:
    """Returns the commands of a page's blocks of shell."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.replace("\\\n", " ").splitlines()]


def of_page(name: str, word: str) -> list[list[str]]:
    found = [command[1:] for command in commands((DOCS / name).read_text()) if word in command[:3]]
    assert found
    return found


def run(arguments: list[str]) -> int:
    try:
        main(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


class Ranker(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.user, self.item, self.head = nn.Embedding(60, 4), nn.Embedding(60, 4), nn.Linear(10, 1)

    def forward(self, user: Tensor, item: Tensor, dense: Tensor) -> Tensor:
        return torch.sigmoid(self.head(torch.cat([self.user(user), self.item(item), dense], 1)))


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(9, 1)

    def forward(self, wide_sum: Tensor, deep_rows: Tensor) -> Tensor:
        return torch.sigmoid(self.head(torch.cat([wide_sum, deep_rows], 1)))


def sample(rows: int = 32) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(2)
    user, item = (torch.randint(0, 60, (rows,), generator=random) for _ in range(2))
    return {"user": user, "item": item, "dense": torch.rand(rows, 2, generator=random)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Holds the files that the pages name, and is the current one."""
    module, given = Ranker().eval(), sample()
    monkeypatch.chdir(tmp_path)
    batch = torch.export.Dim("batch", min=2, max=4096)
    torch.export.save(
        torch.export.export(module, tuple(given.values()), dynamic_shapes=({0: batch},) * 3), tmp_path / "ranker.pt2"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(module).save(str(tmp_path / "model.pt"))
        axes = {name: {0: "batch"} for name in [*NAMES, "ctr"]}
        torch.onnx.export(
            module, tuple(given.values()), "ranker.onnx", input_names=NAMES, output_names=["ctr"], dynamic_axes=axes,
            dynamo=False,
        )  # fmt: skip
        torch.onnx.export(
            Head(), (torch.rand(4, 1), torch.rand(4, 8)), "head.onnx", input_names=["wide_sum", "deep_rows"],
            output_names=["ctr"], dynamic_axes={"wide_sum": {0: "b"}, "deep_rows": {0: "b"}, "ctr": {0: "b"}},
            dynamo=False,
        )  # fmt: skip
    write_hps(tmp_path)
    for name, place in (("model.pt", "ranker_ts"), ("ranker.onnx", "ranker_onnx")):
        (tmp_path / "triton_models" / place / "1").mkdir(parents=True)
        shutil.copy(tmp_path / name, tmp_path / "triton_models" / place / "1" / name.replace("ranker", "model"))
    arrays = {name: values.numpy() for name, values in given.items()}
    np.savez("requests.npz", **arrays)  # type: ignore[arg-type]
    np.savez("numbered.npz", **{f"INPUT__{place}": arrays[name] for place, name in enumerate(NAMES)})  # type: ignore[arg-type]
    pq.write_table(pa.table({name: values.tolist() for name, values in arrays.items()}), "requests.parquet")
    assert rows_of(arrays) == 32
    Path("requests.jsonl").write_text("\n".join(str(body(arrays)).replace("'", '"') for _ in range(2)))
    save_file(module.state_dict(), tmp_path / "weights.safetensors")
    return tmp_path


def test_the_commands_of_networks_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in of_page("importing-networks.md", "import"):
        assert run([*arguments, "--quiet"]) == 0
        out = capsys.readouterr().out
        assert ("published build" in out) == ("--check" not in arguments)
        assert ("compared with the original on " in out) == (arguments[1] in ("onnx", "torchscript"))


def test_the_page_lists_the_operators_that_are_converted() -> None:
    text = (DOCS / "importing-networks.md").read_text()
    (listed,) = re.findall(r"^Abs, .*?\.$", text, re.DOTALL | re.MULTILINE)
    assert re.findall(r"\w+", listed) == sorted(OPERATORS)


@pytest.fixture
def ours(folder: Path) -> Iterator[ServerProcess]:
    """Serves the model under the names that the page has on the old server."""
    for name in ("ranker", "ranker_v3"):
        assert run(["import", "pt2", "ranker.pt2", "--repository", "build/models", "--name", name, "--quiet"]) == 0
    with ServerProcess(folder / "build" / "models", folder / "store", folder / "log") as server:
        yield server


@pytest.mark.slow
def test_the_commands_of_proving_run(ours: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in of_page("proving.md", "prove"):
        address = f"grpc://{ours.grpc}" if arguments[1].startswith("grpc") else f"127.0.0.1:{ours.http_port}"
        assert run([arguments[0], address, *arguments[2:]]) == 0
        assert "equal: " in capsys.readouterr().out


@pytest.mark.slow
def test_the_guide_from_triton_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = "guides/from-triton.md"
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    (folder / "ranker.py").write_text(code)
    for arguments in [*of_page(page, "import"), *of_page(page, "publish")]:
        assert run([*arguments, "--quiet"]) == 0
        assert "published" in capsys.readouterr().out
    assert sorted(path.name for path in (folder / "build" / "models").iterdir()) == [
        "ranker_onnx",
        "ranker_ts",
        "ranker_v3",
    ]
    inputs = zip(("INT64", "INT64", "FP32"), (1, 1, 2), strict=True)
    lines = [
        'backend: "python" max_batch_size: 64 output [{ name: "OUTPUT__0" data_type: TYPE_FP32 dims: [1] }]',
        *(f'input [{{ name: "INPUT__{i}" data_type: TYPE_{kind} dims: [{n}] }}]' for i, (kind, n) in enumerate(inputs)),
        f'parameters {{ key: "weights" value {{ string_value: "{folder / "weights.safetensors"}" }} }}',
        'parameters { key: "fault" value { string_value: "none" } }',
    ]
    model = folder / "served" / "ranker_v3"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text(TRITON_MODEL)
    (model / "config.pbtxt").write_text("\n".join(lines))
    try:
        server = TritonProcess(folder, folder / "served", "ranker_v3")
    except PeerMissingError as error:
        pytest.skip(f"Triton cannot run here: {error}")
    with server:
        for arguments in of_page(page, "prove"):
            assert run([arguments[0], f"grpc://127.0.0.1:{server.grpc_port}", *arguments[2:]]) == 0
            assert "equal: 32 rows" in capsys.readouterr().out
