"""Scores and rows as of any snapshot, from files alone, are those of exactly that snapshot."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from emberline.cli.frame import command as cli
from serving.scoring import Scorer, export_table, find_as_of, open_source, score_parquet
from storage.data import DataOptions
from storage.errors import ConfigError, InvalidInput, NotFound, ParityError
from tests.integration.serving.planted import DIM, Planted, World, planted_row

ROWS = 500


class Chain:
    """Publishes version 1 with deltas, one removing rows, one going back to 1.2, and version 2 without deltas."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder / "repository")
        base = self.world.publish()
        first = self.world.change(base)
        second = self.world.publish_delta(first, changed={"user": [5, 900], "item": [7, -1]}, removed={"item": [0, 9]})
        third = self.world.change(second, slope=3.0)
        fourth = self.world.publish_delta(second, changed={"item": [9, 2**63 - 1]}, removed={"user": [5]})
        fifth = self.world.publish_delta(fourth, changed={"item": [11]}, since=base)
        self.other = self.world.publish(2)
        self.snapshots = [base, first, second, third, fourth, fifth]
        rng = np.random.default_rng(1)
        items = [
            None if rng.random() < 0.1 else rng.integers(-2, 260, rng.integers(0, 6)).tolist() for _ in range(ROWS)
        ]
        users = rng.choice([*range(70), 900, -1], ROWS).tolist()
        self.rows = [{"user": user, "items": list_} for user, list_ in zip(users, items, strict=True)]
        self.source = folder / "in.parquet"
        table = pa.table(
            {
                "row": np.arange(ROWS),
                "user": users,
                "items": pa.array(items, pa.list_(pa.int64())),
                "why": ["because"] * ROWS,
            }
        )
        pq.write_table(table, self.source, row_group_size=77)

    @property
    def model(self) -> Path:
        return self.world.model_dir


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    return Chain(tmp_path_factory.mktemp("chain"))


def check(scored: Path, rows: list[Any], snapshot: Planted) -> None:
    table = pq.read_table(scored)
    expected = snapshot.answer(rows)
    np.testing.assert_allclose(table["score"].to_numpy(), expected["score"].ravel(), atol=1e-6)
    trace = table["trace"].combine_chunks().flatten().to_numpy().reshape(-1, 1 + 2 * DIM)
    assert np.array_equal(trace, expected["trace"])
    assert table.schema.metadata[b"emberline.snapshot"].decode() == snapshot.id
    assert table.schema.metadata[b"emberline.sequence"].decode() == str(snapshot.sequence)


@pytest.mark.parametrize("place", range(6))
def test_rows_are_scored_as_of_a_snapshot(chain: Chain, tmp_path: Path, place: int) -> None:
    snapshot = chain.snapshots[place]
    as_of = find_as_of(chain.model, snapshot.id if place % 2 else snapshot.name)
    assert (as_of.id, as_of.sequence) == (snapshot.id, snapshot.sequence)
    told: list[tuple[int, int]] = []
    with Scorer(as_of, tmp_path / "store", dram_bytes=20_000 if place % 3 else None) as scorer:
        done = score_parquet(
            scorer,
            open_source(scorer.spec, chain.source, ["row", "why"]),
            tmp_path / "out.parquet",
            keep=["row", "why"],
            batch_rows=64,
            threads=1 + place % 3,
            progress=lambda done, total: told.append((done, total)),
        )
    assert done == ROWS
    assert told[-1] == (ROWS, ROWS)
    assert [rows for rows, _ in told] == sorted(rows for rows, _ in told)
    check(tmp_path / "out.parquet", chain.rows, snapshot)
    kept = pq.read_table(tmp_path / "out.parquet")
    assert kept["row"].to_pylist() == list(range(ROWS))
    assert set(kept["why"].to_pylist()) == {"because"}


@pytest.mark.parametrize("place", range(6))
def test_a_table_is_written_as_of_a_snapshot(chain: Chain, tmp_path: Path, place: int) -> None:
    snapshot = chain.snapshots[place]
    for name in ("user", "item"):
        target = tmp_path / f"{name}.parquet"
        count = export_table(find_as_of(chain.model, snapshot.name), name, target)
        table = pq.read_table(target)
        ids = table["id"].to_pylist()
        assert ids == sorted(snapshot.tables[name])
        assert count == len(ids)
        rows = table["row"].combine_chunks().flatten().to_numpy().reshape(-1, DIM)
        expected = [planted_row(id_, snapshot.tables[name][id_]) for id_ in ids]
        assert np.array_equal(rows, np.array(expected))
        assert table.schema.metadata[b"emberline.table"].decode() == name
    with pytest.raises(NotFound, match=r"^no table 'users'; did you mean 'user'\?$"):
        export_table(find_as_of(chain.model), "users", tmp_path / "x.parquet")


def test_a_repository_instead_of_a_model_is_reported_by_its_models(chain: Chain) -> None:
    with pytest.raises(NotFound, match=rf"is it a repository\? Its models are {chain.model.name}"):
        find_as_of(chain.model.parent)


def test_snapshots_are_named_by_version_sequence_id_and_time(chain: Chain) -> None:
    base, fifth = chain.snapshots[0], chain.snapshots[-1]
    assert find_as_of(chain.model).id == chain.other.id
    assert find_as_of(chain.model, "2").id == chain.other.id
    assert find_as_of(chain.model, "1").id == fifth.id
    # A cumulative delta on the version itself is the shortest way.
    assert [delta.sequence for delta in find_as_of(chain.model, "1").deltas] == [5]
    assert [delta.sequence for delta in find_as_of(chain.model, "1.4").deltas] == [1, 2, 4]
    published = find_as_of(chain.model, "1.2").published_unix_ms
    then = datetime.fromtimestamp(published / 1000, UTC)
    assert find_as_of(chain.model, then.isoformat()).published_unix_ms == published
    assert find_as_of(chain.model, "2100-01-01").id == chain.other.id
    with pytest.raises(NotFound, match=r"there are 2.0, 1.0 to 1.5"):
        find_as_of(chain.model, "1990-01-01T00:00")
    with pytest.raises(NotFound, match=r"no snapshot '1.9'.* there are 1.0 to 1.5"):
        find_as_of(chain.model, "1.9")
    with pytest.raises(NotFound, match="there are the versions 1, 2"):
        find_as_of(chain.model, "3.0")
    with pytest.raises(NotFound, match=r"2.0, 1.0 to 1.5"):
        find_as_of(chain.model, base.id[::-1])
    with pytest.raises(InvalidInput, match="or a time such as"):
        find_as_of(chain.model, "the last one")
    with pytest.raises(NotFound, match="holds no version"):
        find_as_of(chain.model.parent)


def test_a_snapshot_whose_way_is_broken_is_not_there(chain: Chain, tmp_path: Path) -> None:
    model = tmp_path / "planted"
    shutil.copytree(chain.model, model)
    shutil.rmtree(model / "1" / "deltas" / "000002")
    assert find_as_of(model, "1.5").sequence == 5
    with pytest.raises(NotFound, match=r"no snapshot '1.4' that all files are there for"):
        find_as_of(model, "1.4")


def test_a_store_is_used_again_for_what_comes_later_and_for_nothing_else(chain: Chain, tmp_path: Path) -> None:
    store, target = tmp_path / "store", tmp_path / "out.parquet"
    for place in (1, 2, 2, 3):
        with Scorer(find_as_of(chain.model, chain.snapshots[place].id), store) as scorer:
            score_parquet(scorer, open_source(scorer.spec, chain.source), target)
        check(target, chain.rows, chain.snapshots[place])
    for place in (4, 1):
        with pytest.raises(ConfigError, match="does not come from; give another folder"):
            Scorer(find_as_of(chain.model, chain.snapshots[place].id), store)


def test_what_does_not_reproduce_its_golden_requests_scores_nothing(tmp_path: Path) -> None:
    world = World(tmp_path / "repository")
    base = world.publish()
    world.publish_delta(base, changed={"user": [3]}, wrong_row=True)
    with pytest.raises(ParityError):
        Scorer(find_as_of(world.model_dir, "1.1"), tmp_path / "store")
    with Scorer(find_as_of(world.model_dir, "1.0"), tmp_path / "store"):
        pass


def test_rows_that_cannot_be_scored_are_named_and_nothing_is_left(chain: Chain, tmp_path: Path) -> None:
    as_of = find_as_of(chain.model, "1.0")
    spec = as_of.version.spec
    pq.write_table(pa.table({"items": [[1]]}), tmp_path / "short.parquet")
    with pytest.raises(ConfigError, match="'user' wants the column 'user', which is not there; the file has: items"):
        open_source(spec, tmp_path / "short.parquet")
    nulls = tuple(entry.model_copy(update={"missing": "null"}) for entry in spec.inputs)
    lenient = spec.model_copy(update={"inputs": nulls})
    with pytest.raises(ConfigError, match="'user' wants the column 'user', which is not there; the file has: items"):
        open_source(lenient, tmp_path / "short.parquet")
    named = DataOptions(missing_columns={"user": None})
    assert open_source(lenient, tmp_path / "short.parquet", options=named).read()["user"].to_pylist() == [None]
    with pytest.raises(ConfigError, match="has no column 'reason'"):
        open_source(spec, chain.source, ["reason"])
    (tmp_path / "no.parquet").write_text("rows")
    with pytest.raises(ConfigError, match="not a readable Parquet file"):
        open_source(spec, tmp_path / "no.parquet")
    wrong = pa.table({"user": pa.array(["x"] * 200), "items": pa.array([[1]] * 200)})
    pq.write_table(wrong, tmp_path / "wrong.parquet")
    with pytest.raises(ConfigError, match=r"wrong.parquet: column 'user' is string, which cannot feed the input"):
        open_source(spec, tmp_path / "wrong.parquet")
    long = pa.table({"user": np.arange(200), "items": pa.array([[1]] * 150 + [[1] * 2000] * 50)})
    pq.write_table(long, tmp_path / "long.parquet")
    with Scorer(as_of, tmp_path / "store") as scorer:
        rows = open_source(spec, tmp_path / "long.parquet")
        with pytest.raises(InvalidInput, match=r"rows 100 to 199: .*items"):
            score_parquet(scorer, rows, tmp_path / "out.parquet", batch_rows=100)
    assert not list(tmp_path.glob("out.parquet*"))


def test_the_commands_score_and_export(chain: Chain, tmp_path: Path) -> None:
    out, table = tmp_path / "out.parquet", tmp_path / "user.parquet"
    score = ["score", "--model", str(chain.model), "--as-of", "1.3", "--keep", "row", str(chain.source), str(out)]
    done = CliRunner().invoke(cli, score)
    assert done.exit_code == 0, done.output
    assert f"scored 500 rows as of 1.3 ({chain.snapshots[3].id})" in done.output
    check(out, chain.rows, chain.snapshots[3])
    assert [path.name for path in tmp_path.iterdir()] == ["out.parquet"]  # no store is left
    with pytest.raises(InvalidInput, match="is there already; --overwrite"):
        CliRunner().invoke(cli, score, catch_exceptions=False)
    assert CliRunner().invoke(cli, [*score, "--overwrite", "--threads", "2", "--quiet"]).exit_code == 0
    done = CliRunner().invoke(cli, ["export", "--model", str(chain.model), "--as-of", "1.2", "user", str(table)])
    assert done.exit_code == 0, done.output
    assert pq.read_table(table)["id"].to_pylist() == sorted(chain.snapshots[2].tables["user"])


def test_text_is_scored_by_the_layout_of_a_configuration(chain: Chain, tmp_path: Path) -> None:
    lists = ["" if row["items"] is None else " ".join(map(str, row["items"])) for row in chain.rows]
    quoted = [f'"{text}"' if row["items"] == [] else text for row, text in zip(chain.rows, lists, strict=True)]
    lines = (
        f"{number};{row['user']};{text}\n" for number, (row, text) in enumerate(zip(chain.rows, quoted, strict=True))
    )
    (tmp_path / "in.txt").write_text("".join(lines))
    (tmp_path / "model.yaml").write_text(
        "data: {format: csv, delimiter: ';', columns: [row, user, items], list_delimiter: ' '}\n"
    )
    out = tmp_path / "out.parquet"
    score = [
        "score",
        "--model",
        str(chain.model),
        "--as-of",
        "1.3",
        "--keep",
        "row",
        "--quiet",
        str(tmp_path / "in.txt"),
    ]
    done = CliRunner().invoke(cli, [*score, str(out), "--data-config", str(tmp_path / "model.yaml")])
    assert done.exit_code == 0, (done.output, done.exception)
    check(out, chain.rows, chain.snapshots[3])
    assert pq.read_table(out)["row"].to_pylist() == list(range(ROWS))
    with pytest.raises(ConfigError, match="got a file of the kind TXT; name its format"):
        CliRunner().invoke(cli, [*score, str(tmp_path / "other.parquet")], catch_exceptions=False)
