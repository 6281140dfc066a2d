"""Snapshots that several ranks publish: the rows are, byte by byte, those that one process publishes of the commit."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.integration.trainer.ranks_process import run_ranks, train_with_ranks
from tests.integration.trainer.test_ranks import SAME_MODEL
from trainer import train, update
from trainer.checkpoint import checkpoints, load_checkpoint, read_commit
from trainer.config import parse_text
from trainer.embedding import whole_table
from trainer.models import build_model, build_tables
from trainer.publication import delta_policy, lineage_of, publisher_of
from trainer.publishing import Publisher
from trainer.publishing.repository import find_delta, find_version, version_numbers
from trainer.trained import read_run, read_sample

CONFIG = SAME_MODEL.replace("epochs: 2", "epochs: 1").replace(
    "name: users, dim: 4", "name: users, dim: 4, expire_after_publishes: 2"
)
CONFIG += """
publish: {delta_every_steps: 20, cumulative_every: 3, version_every_deltas: 6, keep_states: 32, keep_versions: 16,
  row_types: {items: int8}}
"""


def _updated(output: Path, data: Path, repository: Path) -> None:
    whole_table._PIECE_BYTES = 256  # so that rows of several pieces are merged
    update(output, data, repository=repository, progress=False)


def _killed_at_third_write(config: str, data: Path, output: Path, repository: Path) -> None:
    """Trains as a rank; the first one is killed when it is to write its third snapshot, of which a commit is there."""
    write, left = Publisher.write, [3]

    def dying(self: Publisher) -> Path:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return write(self)

    Publisher.write = dying  # type: ignore[method-assign]
    train(parse_text(config), data, output=output, repository=repository, progress=False)


def _payload(folder: Path) -> dict[str, bytes]:
    """Returns the files of rows, removed ids and weights of a snapshot by path, and their fingerprints."""
    manifest = json.loads((folder / "manifest.json").read_text())
    paths = [entry["path"] for entry in manifest["files"] if "golden" not in entry["path"]]
    kept = {path: (folder / path).read_bytes() for path in paths}
    assert any(path.startswith("tables/") for path in kept)
    for part in ("tables", "fingerprints", "dense_fingerprint"):
        if part in manifest:
            kept[part] = json.dumps(manifest[part], sort_keys=True).encode()
    return kept


def _published_by_one(output: Path, commit: Path, repository: Path) -> list[Path]:
    """Publishes what a commit has pending, by this process alone."""
    state = read_commit(commit).state
    config = read_run(output)[0]
    tables = build_tables(config)
    model = build_model(config, tables)
    load_checkpoint(commit, model, tables)
    publisher = publisher_of(
        config, model, read_sample(output, config), repository, delta_policy(config), lineage_of(state)
    )
    publisher.write()
    return list(publisher.written)


def _folder(model_dir: Path, snapshot: str) -> Path:
    version = find_version(model_dir, snapshot)
    if version is not None:
        return version.path
    deltas = (find_delta(model_dir / str(number), snapshot) for number in version_numbers(model_dir))
    return next(delta.path for delta in deltas if delta is not None)


@pytest.mark.long
@pytest.mark.slow
def test_ranks_publish_the_bytes_that_one_process_publishes(clicks: Path, fresh_clicks: Path, tmp_path: Path) -> None:
    output, repository = tmp_path / "run", tmp_path / "models"
    kinds: list[str] = []
    assert train_with_ranks(2, CONFIG, clicks, output, repository=repository) == [0, 0]
    assert run_ranks(3, _updated, output, fresh_clicks, repository) == [0, 0, 0]
    for commit in checkpoints(output):
        names = read_commit(commit).state.snapshots
        copy = tmp_path / f"{commit.name}-models"
        shutil.copytree(repository, copy)
        for name in names:
            shutil.rmtree(_folder(copy / "clicks", name))
        for written, name in zip(_published_by_one(output, commit, copy) if names else (), names, strict=True):
            assert _payload(written) == _payload(_folder(repository / "clicks", name))
            kinds.append("version" if written.parent.name == "clicks" else "delta")
    assert kinds.count("version") > 1
    assert kinds.count("delta") > 3


@pytest.mark.long
@pytest.mark.slow
def test_what_a_killed_rank_had_half_published_is_published_first(clicks: Path, tmp_path: Path) -> None:
    output, repository = tmp_path / "run", tmp_path / "models"
    assert run_ranks(2, _killed_at_third_write, CONFIG, clicks, output, repository) == [-signal.SIGKILL, 1]
    pending = read_commit(checkpoints(output)[-1]).state.snapshots
    assert train_with_ranks(2, CONFIG, clicks, output, repository=repository, resume=True) == [0, 0]
    model_dir = repository / "clicks"
    assert all(_folder(model_dir, name).is_dir() for name in pending)
    lineage = lineage_of(read_commit(checkpoints(output)[-1]).state)
    assert lineage is not None
    assert lineage.pending is None
    published = [entry.snapshot for entry in lineage.published]
    assert all(_folder(model_dir, name).is_dir() for name in published)
    assert {*pending} < {*published}
