"""The chain of commits: what is loaded is what was saved, sizes follow changes, bad bytes are found."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from storage.errors import CheckpointError, ConfigError, IntegrityError, NotFound
from trainer.checkpoint import (
    Commit,
    CommitLog,
    Position,
    TrainingState,
    checkpoints,
    load_checkpoint,
    read_commit,
    read_state,
)
from trainer.checkpoint.commits import FORMAT
from trainer.checkpoint.log import KEEP_CHAINS, MAX_LINKS
from trainer.embedding import EmbeddingTable, optimizer_classes

DIM = 3
IDS = np.array([-(2**63), -1, 0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 2**63 - 1])
CHANCES = [0.23, 0.15, 0.15, 0.05, 0.05, 0.25, 0.06, 0.06]


class Run:
    """A training with two tables, a dense layer and its optimizer."""

    def __init__(self) -> None:
        self.tables = {
            "a": EmbeddingTable("a", DIM, seed=1, admit_after=2),
            "b": EmbeddingTable("b", DIM, seed=1, optimizer="sgd"),
        }
        self.model = nn.Linear(DIM, 1)
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def look(self, name: str, ids: list[int], *, times: int = 1) -> None:
        for _ in range(times):
            self.tables[name].lookup(np.array(ids, np.int64), train=True)

    def learn(self, name: str, ids: list[int]) -> None:
        table, grads = self.tables[name], np.ones((len(ids), DIM), np.float32)
        table.add_gradients(np.array(ids, np.int64), grads)
        optimizer_classes()[table.optimizer]([table], lr=0.1).step()

    def train_dense(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(2, DIM)).sum().backward()
        self.optimizer.step()

    def save(self, log: CommitLog, step: int, *, dense: bool = True, snapshots: tuple[str, ...] = ()) -> Commit:
        state = TrainingState(Position(step=step), {}, {}, "data", [], snapshots=snapshots)
        return log.save(state, self.tables, (self.model, self.optimizer) if dense else None)


def loaded(folder: Path) -> Run:
    run = Run()
    load_checkpoint(folder, run.model, run.tables, run.optimizer)
    return run


def content(run: Run) -> dict[str, list[object]]:
    """Returns everything that a commit must hold, as plain values.

    Stamps are included: later deltas depend on them.
    """
    found: dict[str, list[object]] = {"dense": [value.tolist() for value in run.model.state_dict().values()]}
    for name, table in run.tables.items():
        arrays: list[np.ndarray] = [*table.export_rows(), *table.export_counts(), *table.removed()]
        found[name] = [array.tobytes() for array in arrays]
    return found


@pytest.mark.parametrize("seed", range(12))
def test_what_is_loaded_is_the_live_run_after_any_history(tmp_path: Path, seed: int) -> None:
    """Trains, removes, forgets, saves, restarts and goes back, in any order."""
    rng = np.random.default_rng(seed)
    run, log = Run(), CommitLog(tmp_path).__enter__()
    seen = {"increments": 0, "removed": 0, "back": 0}
    for step in range(80):
        name = str(rng.choice(["a", "b"]))
        table = run.tables[name]
        ids = rng.choice(IDS, size=rng.integers(1, 6)).tolist()
        match rng.choice(["look", "learn", "erase", "stamp", "forget", "save", "restart", "back"], p=CHANCES):
            case "look":
                run.look(name, ids)
            case "learn":
                run.learn(name, ids)
            case "erase":
                seen["removed"] += table.erase(np.array(ids, np.int64))
            case "stamp":
                table.advance()
            case "forget":
                table.forget_removed(max(0, table.stamp - int(rng.integers(0, 4))))
            case "save":
                dense = log.base is None or rng.random() < 0.1
                if dense:
                    run.train_dense()
                commit = run.save(log, step, dense=dense)
                seen["increments"] += commit.links > 0
                assert content(loaded(commit.folder)) == content(run)
            case "restart" if log.newest is not None:
                log.__exit__(None, None, None)
                log = CommitLog(tmp_path).__enter__()
                assert log.newest is not None
                run = loaded(newest_of(log))
            case "back" if log.newest is not None:
                folders = checkpoints(tmp_path)
                commit = read_commit(folders[int(rng.integers(len(folders)))])
                run = loaded(commit.folder)
                log.go_on_from(commit)
                seen["back"] += 1
    for folder in checkpoints(tmp_path):
        read_state(folder)
    log.__exit__(None, None, None)
    assert min(seen.values()) > 0, seen


@pytest.fixture
def grown(tmp_path: Path) -> tuple[Run, CommitLog]:
    """Saves 5,000 rows in one full commit."""
    run = Run()
    run.look("b", list(range(5000)))
    log = CommitLog(tmp_path / "run").__enter__()
    run.save(log, 1)
    return run, log


def newest_of(log: CommitLog) -> Path:
    assert log.newest is not None
    return log.newest.folder


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_an_increment_is_as_large_as_what_changed(grown: tuple[Run, CommitLog]) -> None:
    run, log = grown
    assert log.newest is not None
    whole = size_of(newest_of(log))
    sizes = []
    for step, rows in enumerate((0, 10, 100, 1000)):
        run.learn("b", list(range(rows)))
        sizes.append(size_of(run.save(log, 2 + step, dense=False).folder))
    per_row = (sizes[3] - sizes[2]) / 900
    assert per_row == pytest.approx((sizes[2] - sizes[1]) / 90, rel=0.05)
    assert per_row == pytest.approx(8 + 4 * DIM + 4 + 4 + 4, rel=0.01)
    assert sizes[0] < 1500 < sizes[3] < whole / 2
    assert not (newest_of(log) / "tables" / "a.safetensors").exists()


def test_a_full_commit_comes_when_increments_take_half_of_one(grown: tuple[Run, CommitLog]) -> None:
    run, log = grown
    kinds = []
    for step in range(12):
        run.learn("b", list(range(700)))
        kinds.append(run.save(log, 2 + step).links)
    # 700 of 5,000 rows are 14%, and the dense weights come on top: three fit into half of the full one.
    assert kinds == [1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0]


def test_a_full_commit_comes_after_64_links_and_two_chains_stay(grown: tuple[Run, CommitLog]) -> None:
    run, log = grown
    for step in range(3 * (MAX_LINKS + 1)):
        run.learn("b", [step])
        run.save(log, 2 + step, dense=False, snapshots=(f"{step:032x}",))
    commits = [read_commit(folder) for folder in checkpoints(newest_of(log).parents[1])]
    assert max(commit.links for commit in commits) == MAX_LINKS
    assert len({commit.full for commit in commits}) == KEEP_CHAINS
    assert commits[-1].links == 0
    assert len(commits) == MAX_LINKS + 2
    assert log.find(f"{3 * (MAX_LINKS + 1) - 5:032x}").state.position.step == 3 * (MAX_LINKS + 1) - 3
    with pytest.raises(NotFound, match="was not kept"):
        log.find("0" * 32)


def test_a_full_commit_without_a_step_keeps_the_dense_weights(grown: tuple[Run, CommitLog]) -> None:
    run, log = grown
    run.learn("b", list(range(5000)))
    commit = run.save(log, 2, dense=False)
    assert commit.links == 0
    assert content(loaded(commit.folder)) == content(run)


def test_going_back_keeps_what_came_after_until_it_is_old(grown: tuple[Run, CommitLog]) -> None:
    run, log = grown
    first = log.newest
    assert first is not None
    run.learn("b", [1])
    other = run.save(log, 2)
    run = loaded(first.folder)
    log.go_on_from(first)
    run.learn("b", [2])
    branch = run.save(log, 2)
    assert (branch.number, branch.parent, other.parent) == (3, first.number, first.number)
    assert content(loaded(branch.folder)) == content(run)
    assert content(loaded(other.folder)) != content(run)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_changed_byte_anywhere_in_the_chain_is_found(grown: tuple[Run, CommitLog], place: int) -> None:
    run, log = grown
    for step in (2, 3):
        run.learn("b", [step])
        run.save(log, step)
    folders = checkpoints(newest_of(log).parents[1])
    for name in ("dense.safetensors", "tables/b.safetensors"):
        path = folders[place] / name
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        with pytest.raises(IntegrityError, match=f"{folders[place].name}/{name}"):
            loaded(folders[-1])
        data[-1] ^= 1
        path.write_bytes(data)
    content(loaded(folders[-1]))


def test_a_link_that_is_missing_or_another_is_found(grown: tuple[Run, CommitLog]) -> None:
    run, log = grown
    for step in (2, 3):
        run.learn("b", [step])
        run.save(log, step)
    folders = checkpoints(newest_of(log).parents[1])
    state = folders[1] / "state.json"
    text = state.read_bytes()
    state.write_bytes(text.replace(b'"step":2', b'"step":7'))
    with pytest.raises(IntegrityError, match="another commit-000000002"):
        loaded(folders[2])
    state.write_bytes(text.replace(FORMAT.encode(), b"emberline-training-9"))
    with pytest.raises(CheckpointError, match="another release"):
        loaded(folders[1])
    shutil.rmtree(folders[1])
    with pytest.raises(IntegrityError, match="which is not there"):
        loaded(folders[2])


def test_a_row_that_was_removed_and_forgotten_before_the_commit_does_not_come_back(
    grown: tuple[Run, CommitLog],
) -> None:
    run, log = grown
    table = run.tables["b"]
    table.erase(np.array([7]))
    table.forget_removed(table.advance())
    assert table.removed()[0].tolist() == [7]
    commit = run.save(log, 2)
    assert table.removed()[0].tolist() == []
    assert 7 not in loaded(commit.folder).tables["b"].export_rows()[0]
    assert content(loaded(commit.folder)) == content(run)


def test_one_process_at_a_time_writes_a_run(grown: tuple[Run, CommitLog]) -> None:
    _, log = grown
    output = newest_of(log).parents[1]
    with pytest.raises(ConfigError, match="another process"), CommitLog(output):
        pass
    log.__exit__(None, None, None)
    (output / "checkpoints" / ".writing-1").mkdir()
    with CommitLog(output) as again:
        assert again.newest is not None
    assert not list((output / "checkpoints").glob(".writing-*"))


def test_tables_of_another_configuration_are_refused(grown: tuple[Run, CommitLog]) -> None:
    _, log = grown
    run = Run()
    run.tables["b"] = EmbeddingTable("b", DIM + 1, optimizer="sgd")
    with pytest.raises(CheckpointError, match="has dim 3, expected 4"):
        load_checkpoint(newest_of(log), run.model, run.tables)
    run.tables = {"a": Run().tables["a"], "c": EmbeddingTable("c", DIM)}
    with pytest.raises(CheckpointError, match="holds the table 'b'"):
        load_checkpoint(newest_of(log), run.model, run.tables)
