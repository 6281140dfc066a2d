"""While a trainer publishes, a repository keeps what must stay reachable, and no more than that."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from storage.checkpoint import list_deltas, open_delta, open_version
from tests.integration.trainer.published_line import SPEC, Follower, Training, deltas_of, some_rows
from trainer.publishing import DeltaPolicy, Publisher


@pytest.mark.slow
def test_old_deltas_and_versions_go_and_what_stays_leads_to_the_newest(tmp_path: Path) -> None:
    training = Training()
    policy = DeltaPolicy(
        cumulative_every=3, version_every_deltas=8, version_at_share=0.0, keep_deltas=2, keep_versions=1
    )
    sample = training.step(some_rows(300, 1))
    publisher = Publisher(training.model, sample, tmp_path, name="m", spec=SPEC, policy=policy)
    version = publisher.publish()
    # Neither is touched: one is not ours, the other is not whole.
    shutil.copytree(version, tmp_path / "m" / "77")
    unfinished = version / "deltas" / ".publish-of-somebody"
    unfinished.mkdir(parents=True)
    abandoned = version / "deltas" / ".publish-long-ago"
    abandoned.mkdir()
    os.utime(abandoned, (0, 0))

    kept: list[list[int]] = []
    for seed in range(2, 9):
        publisher.offer(training.step(some_rows(4, seed)))
        publisher.publish()
        kept.append(list_deltas(version))
        follower = Follower(version)
        for delta in deltas_of(version):
            if follower.snapshot in delta.applies_to:
                follower.apply(delta)
        assert follower.agrees(training)
    # Deltas 3 and 6 are cumulative: the deltas that they replace are removed, and nothing is removed at other times.
    assert kept == [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4, 5], [3, 4, 5, 6], [3, 4, 5, 6, 7]]
    assert unfinished.is_dir()
    assert not abandoned.exists()

    publisher.offer(training.step(some_rows(4, 20)))
    assert publisher.prepare().compaction
    newest = publisher.write()
    assert sorted(entry.name for entry in (tmp_path / "m").iterdir()) == ["77", "78", "config.pbtxt"]
    assert newest.name == "78"
    assert Follower(newest).agrees(training)
    publisher.offer(training.step(some_rows(4, 21)))
    delta = open_delta(publisher.publish())
    assert (delta.version, delta.sequence) == (78, 1)
    assert delta.parent == open_version(newest).snapshot


def test_nothing_goes_while_a_delta_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training()
    policy = DeltaPolicy(cumulative_every=3, version_every_deltas=0, version_at_share=0.0, keep_deltas=1)
    sample = training.step(some_rows(300, 1))
    publisher = Publisher(training.model, sample, tmp_path, name="m", spec=SPEC, policy=policy)
    version = publisher.publish()
    real = os.open

    def fail(path: Any, *arguments: Any, **options: Any) -> int:
        if str(path).endswith("000001/manifest.json"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path, *arguments, **options)

    def publish(seed: int) -> None:
        publisher.offer(training.step(some_rows(4, seed)))
        publisher.publish()

    publish(2)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail)
        for seed in range(3, 6):
            publish(seed)
    assert list_deltas(version) == [1, 2, 3, 4]
    assert "stay for now" in caplog.text
    for seed in range(7, 11):
        publish(seed)
    assert list_deltas(version)[0] > 1
