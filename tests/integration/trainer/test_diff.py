"""The difference of two snapshots is that of their files, and scores are moved by what was changed."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner

from emberline.cli.diff import command
from emberline.cli.frame import command as emberline
from emberline.difference.report import compare_snapshots
from emberline.difference.scores import Requests, score_differences
from serving.scoring import Scorer
from storage.checkpoint.as_of import find_as_of
from storage.errors import InvalidInput
from tests.integration.trainer.published_line import CHAIN, SPEC, Training, columns, some_rows
from tests.integration.trainer.update_runs import snapshots
from trainer import publish
from trainer.publishing import Publisher


def diff(*arguments: object) -> dict[str, Any]:
    done = CliRunner().invoke(command, [*map(str, arguments), "--json"], catch_exceptions=False)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_rows_and_weights_are_counted_as_the_files_have_them(updated_place: Path) -> None:
    place = updated_place
    before, *_, after = snapshots(place / "models").values()
    found = diff("--model", place / "models" / "clicks", "1.0", "latest", "--top", 1000)
    for table in found["tables"]:
        old, new = before[table["name"]], after[table["name"]]
        changed = {key for key in old.keys() & new.keys() if old[key] != new[key]}
        assert (table["added"], table["removed"]) == (len(new.keys() - old.keys()), len(old.keys() - new.keys()))
        assert (table["changed"], table["same"]) == (len(changed), len(old.keys() & new.keys()) - len(changed))
        far = {
            key: float(np.linalg.norm(np.frombuffer(new[key], "<f4").astype(float) - np.frombuffer(old[key], "<f4")))
            for key in changed
        }
        listed = {row["id"]: row["change"] for row in table["largest"] if row["kind"] == "changed"}
        assert listed == pytest.approx(far)
        assert table["change_max"] == pytest.approx(max(far.values()))
        uses = [row["uses"] for row in table["hottest"]]
        assert uses == sorted(uses, reverse=True)
    moved = {weight["name"] for weight in found["weights"]}
    assert moved == {name for name, value in before["dense"].items() if after["dense"][name] != value}


def test_a_snapshot_does_not_differ_from_itself(place: Path) -> None:
    folder = place / "models" / "clicks" / "1"
    done = CliRunner().invoke(command, [str(folder), str(folder), "--quiet"], catch_exceptions=False)
    assert "nothing differs" in done.output


def test_a_delta_under_another_name_is_refused_with_what_to_do(tmp_path: Path) -> None:
    version = tmp_path / "m" / "1"
    for folder in (version, version / "deltas" / "newest"):
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text("{}")
    refusal = CliRunner().invoke(command, [str(version / "deltas" / "newest"), str(version)]).exception
    assert isinstance(refusal, InvalidInput)
    assert "newest is not called as a published delta is, VERSION/deltas/NUMBER" in str(refusal)


def test_only_what_was_changed_moves_scores(tmp_path: Path) -> None:
    training = Training()
    raw = training.step(some_rows(400, 1))
    publisher = Publisher(training.model, raw, tmp_path, name="m", spec=SPEC, policy=CHAIN)
    publisher.publish()
    users = training.model.tables["users"]
    ids = np.array([7, 60], np.int64)
    users.add_gradients(ids, np.full((2, users.dim), 0.8, np.float32))
    training.sparse.step()
    publisher.publish()

    rows = some_rows(300, 5)
    before, after = (find_as_of(tmp_path / "m", text) for text in ("1.0", "1.1"))
    with (
        Scorer(before, tmp_path / "first") as first,
        Scorer(after, tmp_path / "second") as second,
    ):
        requests = Requests(columns(rows), len(rows), first.features(columns(rows), len(rows)))
        found, changes = compare_snapshots(before, after, top=3, requests=requests, scorer=first)
        (score,) = score_differences(first, second, requests, changes, 400)
    assert {table.name: table.changed for table in found.tables} == {"users": 2, "tags": 0, "words": 0}
    assert not found.weights
    assert [(part.kind, part.name) for part in score.parts] == [("table", "users")]
    holding = {place for place, row in enumerate(rows) if row[0] in ids}
    assert {request.row for request in score.most} == holding
    assert score.moved == len(holding)
    for request in score.most:
        assert request.parts == {"users": pytest.approx(request.after - request.before, abs=1e-7)}
        ((feature, number, norm),) = request.rows
        assert (feature, number) == ("user", rows[request.row][0])
        assert norm == pytest.approx(0.5 * 0.8 * users.dim**0.5, rel=1e-5)
    assert score.together == pytest.approx(0.0, abs=1e-8)


def test_the_command_scores_a_file_and_writes_a_page(updated_place: Path, fresh_clicks: Path) -> None:
    place = updated_place
    page = place / "changes.html"
    arguments = ["--model", str(place / "models" / "clicks"), "1.0", "latest", "--requests", str(fresh_clicks)]
    done = CliRunner().invoke(
        command, [*arguments, "--rows", "200", "--html", str(page), "--quiet"], catch_exceptions=False
    )
    assert "score: what each part of the second snapshot moves by itself" in done.output
    assert "of 200 requests have another score" in done.output
    text = page.read_text()
    assert "What changed" in text
    assert "Dense weights that differ" in text
    with pytest.raises(InvalidInput, match="A: nowhere is no folder of a version or delta"):
        CliRunner().invoke(command, ["nowhere", "nowhere"], catch_exceptions=False)


def test_the_commands_of_the_page_are_understood(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    (place / "build" / "models" / "movielens").mkdir(parents=True)
    (place / "build" / "movielens").mkdir()
    for name in ("build/movielens/test.parquet", "request.json"):
        (place / name).touch()
    page = (Path(__file__).parents[3] / "docs" / "explain.md").read_text(encoding="utf-8")
    lines = [line for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    assert {shlex.split(line)[1] for line in lines} == {"diff", "explain"}
    for line in lines:
        program, name, *arguments = shlex.split(line)
        found = emberline.get_command(click.Context(emberline), name)
        assert (program, found is not None) == ("emberline", True)
        assert found is not None
        found.make_context(name, arguments)


class _Taste(torch.nn.Module):
    """Scores films, in the second version also by the hour, and with an output more."""

    def __init__(self, by_hour: bool) -> None:
        super().__init__()
        self.film = torch.nn.Embedding(50, 4)
        self.hour = torch.nn.Embedding(24, 4) if by_hour else None

    def forward(self, film: torch.Tensor, hour: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        rows = self.film(film)
        if self.hour is None:
            return {"score": rows.sum(1, keepdim=True), "parts": rows}
        assert hour is not None
        rows = rows + self.hour(hour)
        return {"score": rows.sum(1, keepdim=True), "parts": rows[:, :2], "late": rows[:, :1]}


def test_snapshots_with_other_inputs_are_compared_and_outputs_left_out_are_named(tmp_path: Path) -> None:
    torch.manual_seed(3)
    films, hours = torch.randint(0, 50, (40,)), torch.randint(0, 24, (40,))
    before, after = _Taste(by_hour=False).eval(), _Taste(by_hour=True).eval()
    publish(before, {"film": films}, tmp_path / "models", name="taste")
    publish(after, {"film": films, "hour": hours}, tmp_path / "models", name="taste")
    data = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"film": films.numpy(), "hour": hours.numpy()}), data)
    model = tmp_path / "models" / "taste"
    found = diff(model / "1", model / "2", "--requests", data)
    (score,) = found["scores"]
    with torch.no_grad():
        moved = (after(films, hours)["score"] - before(films)["score"]).abs().mean()
    assert score["output"] == "score"
    assert score["mean"] == pytest.approx(float(moved), rel=1e-4)
    assert found["not_compared"] == [
        "parts: not compared, its shape is [-1, 4] and then [-1, 2]",
        "late: not compared, only the second snapshot has it",
    ]
