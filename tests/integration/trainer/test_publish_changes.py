"""A plain module is published as its difference to what the repository has, or as a version where no delta will do."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import emberline
from storage import list_deltas, open_delta
from storage.checkpoint import PublishedDelta, delta_writer, row_streams
from storage.checkpoint.as_of import find_as_of
from storage.errors import CheckpointError, ConfigError, NotFound, ParityError, Unsupported
from storage.objects import ObjectStore
from storage.objects.published import PublishedModel
from tests.support.object_store import DyingStore
from tests.support.plain_ranker import SAMPLE, Ranker, check_published
from trainer.publishing import DeltaPolicy, changes_publisher, differences
from trainer.publishing import target as targets
from trainer.publishing.target import Target


def publish(model: Ranker, repository: Path | str, delta: Any = True, **options: Any) -> Path:
    return emberline.publish(model, SAMPLE, repository, name="m", delta=delta, **options)


def changed(delta: PublishedDelta, table: str) -> list[int]:
    return [i for shard in delta.shards(table) for i in shard.ids.tolist()]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Gives the test a cache folder of its own."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize("row_type", ["fp32", "int8", "bf16"])
def test_a_delta_holds_the_rows_that_differ_as_they_are_stored(tmp_path: Path, row_type: str) -> None:
    model = Ranker()
    row_types = {"users": row_type}
    first = publish(model, tmp_path, row_types=row_types)
    assert first == tmp_path / "m" / "1"
    model.change([3, 119])
    with torch.no_grad():
        if row_type != "fp32":  # lost in the rounding, so no change
            model.users.weight[7, model.users.weight[7].abs().argmin()] += 1e-7
        model.items.weight[0] += 1.0  # the padding row, which is not published
    delta = open_delta(publish(model, tmp_path))
    assert (delta.path, delta.parent) == (first / "deltas" / "000001", find_as_of(tmp_path / "m", "1.0").id)
    assert changed(delta, "users") == [3, 119]
    assert changed(delta, "items") == []
    check_published(model, tmp_path / "m", row_types)
    golden = delta.manifest.metadata["golden"]
    assert isinstance(golden, dict)
    assert golden["changed_ids_reached"] == 2
    model.change([3], by=0.25, dense=False)
    assert changed(open_delta(publish(model, tmp_path)), "users") == [3]
    assert len(check_published(model, tmp_path / "m", row_types).deltas) == 2


def test_nothing_goes_on_behind_a_delta_that_was_removed_by_hand(tmp_path: Path) -> None:
    model = Ranker()
    first = publish(model, tmp_path)
    for number in (1, 2, 3):
        model.change([number])
        publish(model, tmp_path)
    shutil.rmtree(first / "deltas" / "000002")
    model.change([9])
    wrong = r"deltas/000003 changes a snapshot that is not here.*the last whole one is 1.1.*from_snapshot='1.1'"
    with pytest.raises(CheckpointError, match=wrong):
        publish(model, tmp_path)
    assert list_deltas(first) == [1, 3]
    delta = open_delta(publish(model, tmp_path, from_snapshot="1.1"))
    assert (delta.sequence, changed(delta, "users")) == (4, [2, 3, 9])
    check_published(model, tmp_path / "m")
    model.change([10])
    assert changed(open_delta(publish(model, tmp_path)), "users") == [10]


def test_rows_that_come_and_go_are_a_delta_too(tmp_path: Path) -> None:
    model = Ranker()
    publish(model, tmp_path)
    larger = Ranker(rows=124)
    with torch.no_grad():
        larger.users.weight[:120] = model.users.weight
        larger.items.load_state_dict(model.items.state_dict())
        larger.top.load_state_dict(model.top.state_dict())
    assert changed(open_delta(publish(larger, tmp_path)), "users") == [120, 121, 122, 123]
    check_published(larger, tmp_path / "m")
    back = open_delta(publish(model, tmp_path))
    assert (changed(back, "users"), back.removed("users").tolist()) == ([], [120, 121, 122, 123])
    check_published(model, tmp_path / "m")


def test_nothing_is_published_when_nothing_changed(tmp_path: Path) -> None:
    model = Ranker()
    first = publish(model, tmp_path)
    assert publish(model, tmp_path) == first
    model.change([1])
    delta = publish(model, tmp_path)
    assert publish(model, tmp_path, delta="only") == delta
    assert list_deltas(first) == [1]


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"hidden": 6}, "is torch.float32 [6], published was torch.float32 [5]"),
        ({"row_types": "bf16"}, "rows of the table 'users' are fp32 and are to be bf16"),
        ({"seed": 1}, "more than 50% of the rows of the table 'users' differ"),
    ],
)
def test_what_a_delta_cannot_change_is_published_as_a_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], other: dict[str, Any], reason: str
) -> None:
    first = publish(Ranker(), tmp_path)
    options = {"row_types": other.pop("row_types")} if "row_types" in other else {}
    model = Ranker(**other)
    with pytest.raises(Unsupported, match=re.escape(reason)):
        publish(model, tmp_path, delta="only", **options)
    assert [path.name for path in (tmp_path / "m").iterdir() if path.is_dir()] == ["1"]
    second = publish(model, tmp_path, **options, progress=True)
    assert second == tmp_path / "m" / "2"
    assert reason in " ".join(capsys.readouterr().err.split())
    manifest = find_as_of(tmp_path / "m").version.manifest
    assert manifest.parent == find_as_of(tmp_path / "m", "1.0").id == manifest.descends_from[0]
    assert list_deltas(first) == []


def test_another_limit_that_no_score_of_the_sample_reaches_is_a_version(tmp_path: Path) -> None:
    model = Ranker()
    publish(model, tmp_path)
    model.top[1] = torch.nn.ReLU6()
    with pytest.raises(Unsupported, match="computes something else with the same weights"):
        publish(model, tmp_path, delta="only")
    publish(model, tmp_path)
    model.change([1])
    sample = {name: values.repeat(3, 1) if values.dim() > 1 else values.repeat(3) for name, values in SAMPLE.items()}
    delta = emberline.publish(model, sample, tmp_path, name="m", delta="only")
    assert delta.parts[-3:] == ("2", "deltas", "000001"), "the number of rows of the sample says nothing"


def test_another_computation_with_the_same_weights_is_a_version(tmp_path: Path) -> None:
    model = Ranker()
    publish(model, tmp_path)
    model.top[1] = torch.nn.Tanh()
    with pytest.raises(Unsupported, match="computes something else with the same weights"):
        publish(model, tmp_path, delta="only")
    assert publish(model, tmp_path).name == "2"


def test_a_cumulative_delta_brings_back_what_a_delta_had_changed(tmp_path: Path) -> None:
    model = Ranker()
    policy = DeltaPolicy(cumulative_every=3, version_every_deltas=0, version_at_share=0.0)
    version = publish(model, tmp_path, policy=policy)
    for rows in ([1, 2], [2, 3]):
        model.change(rows)
        publish(model, tmp_path, policy=policy)
    before = [find_as_of(tmp_path / "m", f"1.{number}").id for number in range(3)]
    with torch.no_grad():
        model.users.weight[1] = Ranker().users.weight[1]  # as in the version again
    model.change([9])
    delta = open_delta(publish(model, tmp_path, policy=policy))
    assert delta.manifest.cumulative
    assert set(delta.applies_to) == set(before)
    assert changed(delta, "users") == [1, 2, 3, 9]
    assert len(check_published(model, tmp_path / "m").deltas) == 1
    assert list_deltas(version) == [1, 2, 3]


def test_deltas_that_a_cumulative_one_replaces_go_as_the_policy_says(tmp_path: Path) -> None:
    model = Ranker()
    policy = DeltaPolicy(cumulative_every=3, version_every_deltas=0, version_at_share=0.0, keep_deltas=2)
    version = publish(model, tmp_path, policy=policy)
    kept = []
    for number in range(1, 8):
        model.change([number])
        publish(model, tmp_path, policy=policy)
        kept.append(list_deltas(version))
        check_published(model, tmp_path / "m")
    # As with the deltas of what training tracked: 3 and 6 are cumulative, and nothing is removed at other times.
    assert kept == [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4, 5], [3, 4, 5, 6], [3, 4, 5, 6, 7]]


def test_a_version_follows_when_the_policy_says_so_and_older_ones_go(tmp_path: Path) -> None:
    model = Ranker()
    policy = DeltaPolicy(version_every_deltas=2, keep_versions=1, cumulative_every=0)
    publish(model, tmp_path, policy=policy)
    for _ in range(2):
        model.change([1])
        folder = publish(model, tmp_path, policy=policy)
    assert folder == tmp_path / "m" / "2"
    assert [path.name for path in (tmp_path / "m").iterdir() if path.is_dir()] == ["2"]
    assert len(check_published(model, tmp_path / "m").version.manifest.descends_from) == 3


def test_a_delta_goes_on_from_an_earlier_snapshot_after_a_rollback(tmp_path: Path) -> None:
    model = Ranker()
    publish(model, tmp_path)
    for rows in ([1], [2]):
        model.change(rows)
        publish(model, tmp_path)
    base = find_as_of(tmp_path / "m", "1.1").id
    model.change([5])
    delta = open_delta(publish(model, tmp_path, from_snapshot="1.1"))
    assert (delta.parent, delta.sequence) == (base, 3)
    assert changed(delta, "users") == [2, 5]
    check_published(model, tmp_path / "m")
    with pytest.raises(NotFound, match=r"no snapshot '1\.9'"):
        publish(model, tmp_path, from_snapshot="1.9")


def test_two_publishers_at_once_make_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one publishes while the first has compared, and not yet written."""
    first, second = Ranker(), Ranker()
    publish(first, tmp_path)
    first.change([1])
    second.change([1])
    second.change([2])
    real = differences.difference
    raced: list[Path] = []

    def late(*arguments: Any, **options: Any) -> Any:
        found = real(*arguments, **options)
        if not raced:
            raced.append(tmp_path)
            monkeypatch.setattr(changes_publisher, "difference", real)
            raced[0] = publish(second, tmp_path)
        return found

    monkeypatch.setattr(changes_publisher, "difference", late)
    delta = open_delta(publish(first, tmp_path))
    assert raced[0].name == "000001"
    assert (delta.sequence, delta.parent) == (2, open_delta(raced[0]).snapshot)
    assert changed(delta, "users") == [2]
    check_published(first, tmp_path / "m")


@pytest.mark.parametrize("versions", [1, 3], ids=["a version came", "and the one before was removed"])
def test_who_finds_that_a_version_came_compares_with_that_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, versions: int
) -> None:
    first = Ranker()
    publish(first, tmp_path)
    first.change([1])
    real = differences.difference

    def late(*arguments: Any, **options: Any) -> Any:
        found = real(*arguments, **options)
        monkeypatch.setattr(changes_publisher, "difference", real)
        for more in range(versions):
            publish(Ranker(hidden=6 + more), tmp_path)
        return found

    monkeypatch.setattr(changes_publisher, "difference", late)
    assert publish(first, tmp_path).name == str(versions + 2)
    check_published(first, tmp_path / "m")
    assert not list_deltas(tmp_path / "m" / str(versions + 1))
    assert versions > 1 or not list_deltas(tmp_path / "m" / "1")


def test_a_difference_that_does_not_give_the_modules_table_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Ranker()
    version = publish(model, tmp_path)
    model.change([1, 2])
    real = row_streams.compare

    def loses_one(*arguments: Any) -> Any:
        for found in real(*arguments):
            lost = slice(0, max(0, len(found.changed.ids) - 1))
            yield row_streams.Difference(
                found.changed.take(lost), found.before.take(lost), found.added, found.removed, found.same + 1
            )

    monkeypatch.setattr(differences, "compare", loses_one)
    with pytest.raises(ParityError, match="table 'users'"):
        publish(model, tmp_path)
    assert list_deltas(version) == []


def test_options_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nothing was published yet"):
        publish(Ranker(), tmp_path, delta="only")
    with pytest.raises(ConfigError, match="version numbers a version"):
        publish(Ranker(), tmp_path, version=3)
    with pytest.raises(ConfigError, match="from_snapshot is for a delta"):
        publish(Ranker(), tmp_path, delta=False, from_snapshot="1.0")


def test_an_object_store_gets_the_difference_to_what_it_has(
    store_url: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, other = Ranker(), Ranker()
    publish(model, store_url)
    model.change([1])
    folder = publish(model, store_url)
    check_published(model, folder.parents[2])
    # Another machine publishes while this one has compared.
    other.change([1])
    other.change([2], dense=False)
    real = Target.of(store_url, "m").__class__.claim_sequence
    raced: list[bool] = []

    def late(self: Any, *arguments: Any) -> int:
        claimed = real(self, *arguments)
        if not raced:
            raced.append(True)
            publish(other, store_url)
        return claimed

    monkeypatch.setattr(Target.of(store_url, "m").__class__, "claim_sequence", late)
    model.change([3], dense=False)
    folder = publish(model, store_url)
    head = PublishedModel(ObjectStore(store_url), "m").head()
    ((version,), deltas) = (head.versions, head.versions[0].deltas)
    assert len(deltas) == 3
    delta = open_delta(folder)
    assert delta.parent == deltas[1].snapshot
    assert changed(delta, "users") == [2, 3], "the other one's row 2 is not in this module"
    snapshot = Target.of(store_url, "m").snapshot()
    assert snapshot is not None
    assert (snapshot.id, snapshot.version.snapshot) == (delta.snapshot, version.snapshot)
    assert Target.of(store_url, "m").snapshot("1.1").id == deltas[0].snapshot  # type: ignore[union-attr]
    with pytest.raises(NotFound, match=r"no snapshot '1\.9'"):
        Target.of(store_url, "m").snapshot("1.9")


def test_large_weights_are_published_as_what_changed_in_them(tmp_path: Path) -> None:
    policy = DeltaPolicy(full_weights_every=3, cumulative_every=5, version_every_deltas=0, version_at_share=0.0)
    model = Ranker(hidden=40_000)
    publish(model, tmp_path, policy=policy)
    full = sum(value.nbytes for value in find_as_of(tmp_path / "m").version.weights().values())
    found = []
    for number in range(5):
        with torch.no_grad():
            model.get_parameter("top.0.weight")[number::50] += 0.01
        delta = open_delta(publish(model, tmp_path, policy=policy))
        dense = delta.manifest.dense
        found.append(0 if dense is None else dense.depth)
        assert (delta.size_bytes < 0.2 * full) == (dense is not None)
        check_published(model, tmp_path / "m")
    assert found == [1, 2, 0, 1, 1], "each third has all, and the cumulative one is a difference to the version"
    assert open_delta(tmp_path / "m" / "1" / "deltas" / "000005").dense_against == find_as_of(tmp_path / "m", "1.0").id


def test_a_publisher_that_is_stopped_leaves_nothing_half_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Ranker()
    version = publish(model, tmp_path)
    model.change([1])

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(delta_writer, "move_into_place", stop)
        with pytest.raises(KeyboardInterrupt):
            publish(model, tmp_path)
    assert list((version / "deltas").iterdir()) == []
    assert publish(model, tmp_path).name == "000001"


def test_a_publisher_that_ends_between_any_two_uploads_hides_nothing(
    store_url: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever publishes next goes on from what the store names, here after each of the writes of an upload."""
    monkeypatch.setattr(targets, "ObjectStore", DyingStore)
    monkeypatch.setattr(DyingStore, "left", 10**6)
    model = Ranker()
    publish(model, store_url)
    for writes in range(20):
        model.change([writes % 7])
        DyingStore.left = writes
        try:
            publish(model, store_url)
        except KeyboardInterrupt:
            DyingStore.left = 10**6
            folder = publish(model, store_url)
            found = Target.of(store_url, "m").snapshot()
            assert found is not None
            assert found.id == open_delta(folder).snapshot
        else:
            break
    assert writes > 5
    snapshot = Target.of(store_url, "m").snapshot()
    assert snapshot is not None
    rows = {i: row.tobytes() for block in snapshot.rows("users") for i, row in zip(block.ids, block.rows, strict=True)}
    assert rows == {i: row.tobytes() for i, row in enumerate(model.users.weight.detach().numpy())}
