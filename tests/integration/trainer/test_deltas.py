"""Deltas of a model that goes on training: a follower of the repository has what the trainer has, to the bit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from storage.checkpoint import list_deltas, open_delta, open_version
from storage.checkpoint.fingerprint import fingerprint_hex, table_fingerprint
from storage.errors import CheckpointError, ConfigError, InvalidInput, NotFound, Unsupported
from storage.features import FeatureEngine
from tests.integration.trainer.published_line import (
    CHAIN,
    SPEC,
    Follower,
    Row,
    Training,
    columns,
    deltas_of,
    go_on,
    publisher_of,
    scores,
    some_rows,
)
from trainer import EmbeddingBag, EmbeddingTable, SparseSGD
from trainer.publishing import DeltaPolicy, Lineage, Publisher
from trainer.publishing.publisher import WantedKind

Begun = Callable[..., tuple[Training, Publisher, Path]]


@pytest.fixture
def begun(models: Path) -> Begun:
    """Makes a training behind version 1, its publisher, and that version."""

    def make(policy: DeltaPolicy = CHAIN) -> tuple[Training, Publisher, Path]:
        return *go_on(models, policy), models / "m" / "1"

    return make


def step(training: Training, publisher: Publisher, seed: int, *, count: int = 12, high: int = 400) -> None:
    publisher.offer(training.step(some_rows(count, seed, low=seed, high=high)))


def test_a_version_and_its_deltas_are_the_trainers_tables_and_weights(begun: Begun) -> None:
    training, publisher, version = begun()
    follower = Follower(version)
    assert follower.agrees(training)
    for seed in range(2, 6):
        step(training, publisher, seed)
        assert not follower.agrees(training)
        folder = publisher.publish()
        follower.apply(open_delta(folder))
        assert follower.agrees(training)
    assert [delta.sequence for delta in deltas_of(version)] == [1, 2, 3, 4]
    assert [entry.name for entry in publisher.lineage.published] == ["1.0", "1.1", "1.2", "1.3", "1.4"]
    assert training.model.training


def test_a_delta_holds_what_changed_and_says_its_fingerprint(begun: Begun) -> None:
    training, publisher, _ = begun()
    before = training.tables()
    step(training, publisher, 7, count=2)
    delta = open_delta(publisher.publish())
    after = training.tables()
    for entry in delta.manifest.tables:
        shard = next(delta.shards(entry.name), None)
        held = set() if shard is None else set(shard.ids.tolist())
        changed = {i for i, row in after[entry.name].items() if before[entry.name].get(i) != row}
        assert changed <= held <= set(after[entry.name])
        assert len(held) < len(after[entry.name])
        if shard is not None:
            value = table_fingerprint(shard.ids, shard.rows, delta.removed(entry.name))
            assert entry.fingerprint == fingerprint_hex(value)
    assert publisher.lineage.newest is not None
    assert delta.manifest.dense_fingerprint == publisher.lineage.newest.dense


def test_a_cumulative_delta_is_the_chain_and_applies_to_every_snapshot_of_it(begun: Begun) -> None:
    training, publisher, version = begun()
    followers = [Follower(version)]
    for seed in range(2, 5):
        step(training, publisher, seed)
        delta = open_delta(publisher.publish())
        ahead = Follower(version)
        for other in deltas_of(version):
            ahead.apply(other)
        assert ahead.snapshot == delta.snapshot
        followers.append(ahead)
    erased = np.array(sorted(training.tables()["users"])[:3])
    training.model.tables["users"].erase(erased)
    step(training, publisher, 9)
    cumulative = open_delta(publisher.publish("cumulative"))
    assert cumulative.manifest.from_sequence == 0
    assert [follower.snapshot for follower in followers] == list(cumulative.applies_to)
    for follower in followers:
        follower.apply(cumulative)
        assert follower.agrees(training)


def test_removed_ids_go_and_come_back_new(begun: Begun) -> None:
    training, publisher, version = begun()
    follower = Follower(version)
    table = training.model.tables["users"]
    users = sorted(training.tables()["users"])[:4]
    table.erase(np.array(users))
    delta = open_delta(publisher.publish())
    assert delta.removed("users").tolist() == users
    follower.apply(delta)
    assert follower.agrees(training)
    golden = delta.golden(SPEC, open_version(delta.path.parent.parent).manifest.graph)
    asked = FeatureEngine(SPEC).run(golden.columns, golden.batch).ids["user"].values
    assert set(users) <= set(asked.tolist())

    raw = training.step([(users[0], [], [], 0.0), (users[1], [], [], 0.0)])
    publisher.offer(raw)
    table.erase(np.array([users[1]]))
    back = open_delta(publisher.publish())
    assert users[0] in next(iter(back.shards("users"))).ids
    assert back.removed("users").tolist() == [users[1]]
    follower.apply(back)
    assert follower.agrees(training)


def test_extreme_ids_travel(begun: Begun) -> None:
    training, publisher, version = begun()
    follower = Follower(version)
    extremes = [-1, 0, 2**63 - 1, -(2**63)]
    publisher.offer(training.step([(i, [i], [], 1.0) for i in extremes]))
    delta = open_delta(publisher.publish())
    follower.apply(delta)
    assert follower.agrees(training)
    assert set(extremes) <= set(follower.rows["users"]) & set(follower.rows["tags"])
    golden = delta.golden(SPEC, open_version(version).manifest.graph)
    asked = FeatureEngine(SPEC).run(golden.columns, golden.batch)
    for feature in ("user", "tags"):
        assert set(extremes) <= set(asked.ids[feature].values.tolist())


@pytest.mark.parametrize("count", [2, 40, 700])
def test_golden_requests_reach_what_changed_and_are_the_modules_scores(count: int, begun: Begun) -> None:
    training, publisher, version = begun()
    follower = Follower(version)
    step(training, publisher, 3, count=count, high=5000)
    training.model.tables["tags"].erase(np.array([49]))
    delta = open_delta(publisher.publish())
    follower.apply(delta)
    golden = delta.golden(SPEC, open_version(version).manifest.graph)
    assert 256 <= golden.batch <= 1024
    np.testing.assert_allclose(
        scores(version, follower, dict(golden.columns), golden.batch),
        golden.outputs["score"],
        rtol=0,
        atol=golden.tolerance,
    )
    features = FeatureEngine(SPEC).run(golden.columns, golden.batch)
    reaching = np.zeros(golden.batch, bool)
    for feature in SPEC.ids_features:
        bags = features.ids[feature.name]
        changed = {i for shard in delta.shards(feature.table) for i in shard.ids.tolist()}
        rows = np.repeat(np.arange(golden.batch), bags.lengths())
        hit = np.isin(bags.values, list(changed))
        reaching[rows[hit]] = True
        assert hit.any()
        assert set(bags.values.tolist()) - set(follower.rows[feature.table])
        assert (bags.lengths() == 0).any()
        # All but what only a hash could lead to, and that too where the rows trained on are at hand.
        assert changed <= set(bags.values.tolist())
    assert 2 * reaching.sum() >= golden.batch
    assert delta.manifest.metadata["golden"] == {
        "requests": golden.batch,
        "reaching_changed": int(reaching.sum()),
        "changed_ids_reached": sum(table.rows for table in delta.tables),
    }


def test_a_table_that_nothing_else_reaches_is_reached_by_the_versions_own_requests(begun: Begun) -> None:
    training, publisher, version = begun()
    # From now on no sample and no offered row knows a word.
    plain = training.step([(1, [1], [], 0.0), (2, [2], [], 0.0)])
    resumed = Publisher(
        training.model, plain, version.parent.parent, name="m", spec=SPEC, policy=CHAIN, lineage=publisher.lineage
    )
    delta = open_delta(resumed.publish())
    golden = delta.golden(SPEC, open_version(version).manifest.graph)
    words = FeatureEngine(SPEC).run(golden.columns, golden.batch).ids["words"].values
    assert set(words.tolist()) & set(training.tables()["words"])


def test_a_repository_that_cannot_be_written_to_is_said_before_anything_is_drawn(
    begun: Begun, models: Path, tmp_path: Path
) -> None:
    training, publisher, _ = begun()
    step(training, publisher, 5)
    (tmp_path / "file").write_bytes(b"")
    elsewhere = publisher_of(training, tmp_path / "file", lineage=publisher.lineage)
    with pytest.raises(CheckpointError, match=r"cannot publish into .*file/m: Not a directory"):
        elsewhere.prepare("version")
    assert elsewhere.lineage.pending is None


def test_what_is_pending_after_a_crash_is_written_as_it_was_prepared(begun: Begun, models: Path) -> None:
    training, publisher, version = begun()
    follower = Follower(version)
    step(training, publisher, 5)
    pending = publisher.prepare()
    committed = Lineage.from_json_value(publisher.lineage.to_json_value())
    assert committed.pending == pending

    resumed = publisher_of(training, models, lineage=committed)
    folder = resumed.write()
    delta = open_delta(folder)
    assert (delta.snapshot, delta.sequence, delta.parent) == (pending.snapshot, 1, follower.snapshot)
    follower.apply(delta)
    assert follower.agrees(training)
    assert resumed.write() == folder

    # The crash came after the write and before the next commit: nothing is written twice.
    late = publisher_of(training, models, lineage=committed)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert late.write() == folder
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert late.lineage == resumed.lineage
    step(training, late, 6)
    follower.apply(open_delta(late.publish()))
    assert follower.agrees(training)


def test_the_same_pending_snapshot_makes_the_same_bytes(begun: Begun, models: Path) -> None:
    training, publisher, _ = begun()
    training.step(some_rows(9, 5))
    publisher.prepare()
    lineage = publisher.lineage
    folder = publisher.write()
    first = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    shutil.rmtree(folder)
    assert publisher_of(training, models, lineage=lineage).write() == folder
    assert {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()} == first


def test_a_pending_snapshot_that_was_never_written_is_in_the_next_snapshot(begun: Begun) -> None:
    training, publisher, version = begun()
    follower = Follower(version)
    step(training, publisher, 5)
    broken = publisher.prepare()
    step(training, publisher, 6)
    kept = publisher.prepare()
    assert kept.parent == follower.snapshot
    assert kept.sequence > broken.sequence
    follower.apply(open_delta(publisher.write()))
    assert follower.agrees(training)


def test_training_goes_on_from_an_older_snapshot_after_a_rollback(begun: Begun) -> None:
    training, publisher, version = begun()
    served, bad = Follower(version), []
    for seed in range(2, 6):
        step(training, publisher, seed)
        delta = open_delta(publisher.publish())
        if seed < 4:
            served.apply(delta)
        else:
            bad.append(delta.snapshot)
    step(training, publisher, 8)
    rebased = open_delta(publisher.publish(from_snapshot="1.2"))
    assert rebased.applies_to == (served.snapshot,)
    assert rebased.sequence == 5
    served.apply(rebased)
    assert served.agrees(training)
    step(training, publisher, 9)
    after = open_delta(publisher.publish())
    assert after.applies_to == (rebased.snapshot,)
    served.apply(after)
    # What it left behind is in no snapshot's past any more.
    step(training, publisher, 10)
    cumulative = open_delta(publisher.publish("cumulative"))
    assert not set(bad) & set(cumulative.applies_to)
    fresh = Follower(version)
    fresh.apply(cumulative)
    assert fresh.agrees(training)
    full = open_version(publisher.publish("version"))
    assert not set(bad) & set(full.manifest.descends_from)
    assert full.manifest.parent == full.manifest.equals == cumulative.snapshot


def test_a_cumulative_delta_from_an_older_snapshot_covers_what_lies_before_it(begun: Begun) -> None:
    training, publisher, version = begun()
    snapshots = [publisher.lineage.base]
    for seed in range(2, 6):
        step(training, publisher, seed)
        snapshots.append(open_delta(publisher.publish()).snapshot)
    step(training, publisher, 8)
    delta = open_delta(publisher.publish("cumulative", from_snapshot=snapshots[2]))
    assert delta.applies_to == tuple(snapshots[:3])
    assert delta.parent == snapshots[2]
    follower = Follower(version)
    follower.apply(delta)
    assert follower.agrees(training)


@pytest.mark.slow
def test_snapshots_that_nobody_knows_are_named(begun: Begun, models: Path, tmp_path: Path) -> None:
    training, publisher, version = begun()
    elsewhere = publisher_of(training, tmp_path / "elsewhere")
    with pytest.raises(NotFound, match="publish a version"):
        elsewhere.prepare("delta")
    with pytest.raises(NotFound, match="nothing was published yet"):
        elsewhere.prepare(from_snapshot="1.0")
    with pytest.raises(NotFound, match=r"'1\.7' is not among .* 1\.0 to 1\.0"):
        publisher.prepare(from_snapshot="1.7")
    with pytest.raises(ConfigError, match="a number"):
        publisher.prepare("delta", version=3)
    with pytest.raises(CheckpointError, match="exists"):
        publisher.prepare("version", version=1)
    with pytest.raises(InvalidInput, match="'tags' is not there"):
        publisher.offer({"user": columns(some_rows(2, 1))["user"]})
    with pytest.raises(CheckpointError, match="call prepare"):
        publisher.write()
    shutil.rmtree(version)
    with pytest.raises(NotFound, match="version 1 is not there"):
        publisher.prepare("delta")
    # Another model's version of the same number is not the one that deltas of this line change.
    other = Training()
    other.step(some_rows(20, 5))
    publisher_of(other, models).publish()
    with pytest.raises(NotFound, match="version 1 is not there"):
        publisher.prepare("delta")
    step(training, publisher, 3)
    assert publisher.publish().name == "2"


def test_a_version_of_a_state_that_was_published_says_so(begun: Begun) -> None:
    training, publisher, version = begun()
    first = open_version(version)
    assert first.manifest.parent is None
    assert first.manifest.equals is None
    again = open_version(publisher.publish("version"))
    assert again.manifest.equals == again.manifest.parent == first.snapshot
    with torch.no_grad():
        training.model.top.bias.add_(1.0)
    changed = open_version(publisher.publish("version", version=9))
    assert (changed.manifest.equals, changed.manifest.parent) == (None, again.snapshot)
    assert changed.manifest.descends_from == (again.snapshot, first.snapshot)
    step(training, publisher, 4)
    assert open_version(publisher.publish("version")).manifest.equals is None
    step(training, publisher, 5)
    delta = open_delta(publisher.publish())
    assert (delta.version, delta.sequence) == (10, 1)


def test_deltas_are_compacted_into_a_version_of_the_same_content(begun: Begun) -> None:
    policy = DeltaPolicy(cumulative_every=0, version_every_deltas=3, version_at_share=0.0, keep_versions=9)
    training, publisher, version = begun(policy)
    follower = Follower(version)
    for seed in range(2, 4):
        step(training, publisher, seed)
        follower.apply(open_delta(publisher.publish()))
    step(training, publisher, 4)
    pending = publisher.prepare()
    folder = publisher.write()
    compacted = open_version(folder)
    assert (compacted.snapshot, compacted.version) == (pending.compaction, 2)
    follower.apply(open_delta(folder.parent / "1" / "deltas" / "000003"))
    assert compacted.manifest.equals == compacted.manifest.parent == follower.snapshot == pending.snapshot
    compact = Follower(folder)
    assert (compact.rows, compact.agrees(training)) == (follower.rows, True)
    step(training, publisher, 5)
    delta = open_delta(publisher.publish())
    assert (delta.version, delta.sequence, delta.parent) == (2, 1, compacted.snapshot)
    compact.apply(delta)
    assert compact.agrees(training)


def test_a_crash_between_a_delta_and_its_compaction_makes_both_once(begun: Begun, models: Path) -> None:
    policy = DeltaPolicy(version_every_deltas=1)
    training, publisher, _ = begun(policy)
    step(training, publisher, 4)
    publisher.prepare()
    lineage = publisher.lineage
    version = publisher.write()
    shutil.rmtree(version)
    resumed = publisher_of(training, models, policy, lineage)
    assert resumed.write() == version
    assert list_deltas(version.parent / "1") == [1]
    assert resumed.lineage == publisher.lineage


def test_the_share_of_the_versions_rows_asks_for_a_compaction(begun: Begun) -> None:
    policy = DeltaPolicy(cumulative_every=0, version_every_deltas=0, version_at_share=0.3)
    training, publisher, _ = begun(policy)
    kinds = []
    for seed in range(2, 30):
        step(training, publisher, seed, count=4, high=200)
        kinds.append(bool(publisher.prepare().compaction))
        publisher.write()
        if kinds[-1]:
            break
    assert kinds[-1]
    assert not any(kinds[:3])


def test_rows_that_nobody_touches_expire_and_are_removed_from_servers(begun: Begun) -> None:
    policy = DeltaPolicy(cumulative_every=0, version_every_deltas=0, version_at_share=0.0, expire_after={"users": 2})
    training, publisher, version = begun(policy)
    follower = Follower(version)
    kept: list[Row] = [(user, [1], [], 0.0) for user in (3, 4)]
    removed: list[set[int]] = []
    for _ in range(3):
        publisher.offer(training.step(kept))
        delta = open_delta(publisher.publish())
        removed.append(set(delta.removed("users").tolist()))
        follower.apply(delta)
        assert follower.agrees(training)
    assert removed[0] == removed[2] == set()
    assert len(removed[1]) > 50
    assert set(follower.rows["users"]) == {3, 4}
    assert len(follower.rows["words"]) > 50


def test_two_publishers_of_one_version_never_write_the_same_number(begun: Begun, models: Path) -> None:
    training, one, version = begun()
    two = publisher_of(training, models, lineage=one.lineage)
    step(training, one, 3)
    first, second = one.prepare(), two.prepare()
    assert (first.sequence, second.sequence) == (1, 1)
    folders = [one.write(), two.write()]
    assert [folder.name for folder in folders] == ["000001", "000002"]
    assert [open_delta(folder).snapshot for folder in folders] == [first.snapshot, second.snapshot]
    assert two.lineage.newest is not None
    assert two.lineage.newest.name == "1.2"
    for folder in folders:
        follower = Follower(version)
        follower.apply(open_delta(folder))
        assert follower.agrees(training)
    step(training, one, 4)
    assert open_delta(one.publish()).sequence == 3


def test_plain_torch_layers_have_no_deltas_and_are_named(tmp_path: Path) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ours = EmbeddingBag(EmbeddingTable("ours", 4))
            self.plain = nn.Embedding(5, 4)

        def forward(self, ids: torch.Tensor, offsets: torch.Tensor, plain: torch.Tensor) -> torch.Tensor:
            return (self.ours(ids, offsets) + self.plain(plain)).sum(dim=1)

    module = Mixed()
    sample = (torch.tensor([1, 2, 3]), torch.tensor([0, 1, 3]), torch.tensor([0, 4]))
    module(*sample)
    publisher = Publisher(module, sample, tmp_path, name="m")
    version = publisher.publish()
    kinds: tuple[WantedKind, ...] = ("auto", "delta", "cumulative")
    for kind in kinds:
        with pytest.raises(Unsupported, match="table 'plain'"):
            publisher.prepare(kind)
    assert publisher.publish("version").parent == version.parent


def test_a_module_without_a_spec_has_deltas_too(tmp_path: Path) -> None:
    class Ours(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = EmbeddingTable("t", 4, optimizer="sgd")
            self.bag = EmbeddingBag(self.table, "mean")

        def forward(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
            return self.bag(ids, offsets).sum(dim=1)

    module = Ours()
    sample = (torch.arange(30), torch.arange(0, 31, 3))
    module(*sample)
    publisher = Publisher(module, sample, tmp_path, name="m")
    publisher.publish()
    module.table.add_gradients(np.array([7, 11]), np.ones((2, 4), np.float32))
    SparseSGD([module.table], lr=0.1).step()
    delta = open_delta(publisher.publish("delta"))
    assert next(iter(delta.shards("t"))).ids.tolist() == [7, 11]
    golden = delta.manifest.metadata["golden"]
    assert isinstance(golden, dict)
    assert golden["changed_ids_reached"] == 2


def test_a_trainer_gone_to_nan_publishes_nothing(begun: Begun) -> None:
    training, publisher, version = begun()
    table = training.model.tables["users"]
    user = next(iter(training.tables()["users"]))
    table.add_gradients(np.array([user]), np.full((1, 4), np.nan, np.float32))
    SparseSGD([table], lr=1.0).step()
    with pytest.raises(CheckpointError):
        publisher.publish()
    assert list_deltas(version) == []
