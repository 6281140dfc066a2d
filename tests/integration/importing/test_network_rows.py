"""A network whose rows were looked up before it, as behind HPS, is imported with tables of other files."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from emberline.cli.frame import main
from storage import open_version

DIM = 4
NAMES = ["user_row", "history_sum", "pair_rows", "dense"]


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(4 * DIM + 2, 1)

    def forward(self, user_row: Tensor, history_sum: Tensor, pair_rows: Tensor, dense: Tensor) -> Tensor:
        return torch.sigmoid(self.head(torch.cat([user_row, history_sum, pair_rows.flatten(1), dense], 1)))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Holds the network in two files, and two tables, and is the current folder."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    for name in ("users", "items"):
        rows = random.normal(size=(50, DIM)).astype(np.float32)
        np.savez(f"{name}.npz", ids=np.arange(100, 150), rows=rows)
    given = (torch.rand(8, DIM), torch.rand(8, DIM), torch.rand(8, 2, DIM), torch.rand(8, 2))
    batch = torch.export.Dim("batch", min=2, max=4096)
    program = torch.export.export(Network().eval(), given, dynamic_shapes=({0: batch},) * 4)
    torch.export.save(program, tmp_path / "network.pt2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        axes = {name: {0: "batch"} for name in NAMES}
        torch.onnx.export(
            Network().eval(), given, "network.onnx", input_names=NAMES, output_names=["ctr"], dynamic_axes=axes,
            dynamo=False,
        )  # fmt: skip
    return tmp_path


@pytest.mark.parametrize("file", ["network.onnx", "network.pt2"])
def test_inputs_take_rows_of_the_tables(file: str, folder: Path) -> None:
    rows = ["--rows", "user_row=users", "--rows", "history_sum=items:sum", "--rows", "pair_rows=items"]
    main(["import", "numpy", "users.npz", "items.npz", "--network", file, *rows, "--repository", "models",
          "--name", "ranker", "--quiet"])  # fmt: skip
    version = open_version(folder / "models" / "ranker" / "1")
    assert {table.name: table.rows for table in version.tables} == {"users": 50, "items": 50}
    features = {entry.name: (entry.table, entry.pooling) for entry in version.spec.ids_features}
    assert features == {
        "user_row": ("users", "sum"),
        "history_sum": ("items", "sum"),
        "pair_rows": ("items", "none"),
    }
    golden = version.golden()
    tables = {name: np.load(f"{name}.npz") for name in ("users", "items")}

    def looked_up(name: str, ids: np.ndarray) -> np.ndarray:
        known = (ids >= 100) & (ids < 150)
        return np.where(known[:, None], tables[name]["rows"][np.where(known, ids - 100, 0)], 0).astype(np.float32)

    user, history, pair, dense = (golden.columns[name] for name in NAMES)
    assert history.offsets is not None
    summed = np.stack([
        looked_up("items", np.asarray(history.values)[start:stop]).sum(0)
        for start, stop in zip(history.offsets, history.offsets[1:], strict=False)
    ])  # fmt: skip
    wanted = Network().eval()(
        torch.from_numpy(looked_up("users", np.asarray(user.values))),
        torch.from_numpy(summed.astype(np.float32)),
        torch.from_numpy(looked_up("items", np.asarray(pair.values)).reshape(-1, 2, DIM)),
        torch.from_numpy(np.asarray(dense.values).reshape(-1, 2).copy()),
    )
    (scores,) = golden.outputs.values()
    np.testing.assert_allclose(scores, wanted.detach().numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--rows", "user=users"], "the network has no input 'user'; did you mean 'user_row'"),
        (["--rows", "user_row=user"], "the files have no table 'user'; did you mean 'users'"),
        (
            ["--rows", "dense=users"],
            "the input 'dense' takes ['batch', 2] of torch.float32, and rows of 'users' have 4",
        ),
        (
            ["--rows", "user_row=users:max"],
            "expected INPUT=TABLE or INPUT=TABLE:POOLING, POOLING one of row, sum, mean",
        ),
        ([], "--rows says which inputs of --network take rows of which table; give both or none"),
    ],
)
def test_rows_that_do_not_fit_are_refused(
    options: list[str], text: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["import", "numpy", "users.npz", "--network", "network.pt2", "--repository", "models", "--name", "ranker"]
    with pytest.raises(SystemExit):
        main([*command, *options, "--quiet"])
    assert text in capsys.readouterr().err
    assert not (folder / "models").exists()
