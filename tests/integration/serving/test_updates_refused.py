"""Tests what a running server refuses: each kind of bad delta and version, and signatures that break clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage.errors import NotFound, Unavailable
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME, SPEC


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with Live(tmp_path, retain_snapshots=3) as running:
        yield running


@pytest.mark.slow
def test_each_kind_of_bad_delta_is_refused_and_the_next_good_one_is_taken(live: Live) -> None:
    start = live.version()
    live.start()
    good = live.delta(start)
    live.reaches(good)

    def damaged(pattern: str) -> Callable[[], None]:
        def publish() -> None:
            live.repository.pause(NAME)
            path = live.world.change(good).path
            file = next(path.glob(pattern))
            data = bytearray(file.read_bytes())
            data[-3] ^= 1
            file.write_bytes(data)
            live.repository.resume(NAME)

        return publish

    kinds: list[tuple[str, Callable[[], object]]] = [
        ("not what was published", damaged("tables/item*")),
        ("not what was published", damaged("dense.safetensors")),
        ("not what was published", damaged("golden.safetensors")),
        ("manifest.json", damaged("manifest.json")),
        ("golden requests", lambda: live.world.change(good, wrong_by=0.1)),
        ("golden requests", lambda: live.world.change(good, wrong_row=True)),
        ("golden requests", lambda: live.world.change(good, wrong_weight=True)),
    ]
    for count, (reason, publish) in enumerate(kinds, 1):
        publish()
        live.until(lambda count=count: len(live.refused()) == count)  # type: ignore[misc]
        assert reason in live.refused()[-1]
        assert live.served() is good
    # Bad files are counted only after nothing writes to them any more.
    live.until(lambda: sum(live.repository.update_counters(NAME).refused.values()) == len(kinds))
    entry = live.repository.index()[0]
    assert entry.state == "READY"
    assert "refused deltas" in entry.reason
    with pytest.raises(Unavailable, match="refused"):
        live.served(min_snapshot=live.report()["quarantined"][-1]["snapshot"])
    better = live.delta(good)
    live.reaches(better)
    assert live.repository.update_counters(NAME).overlays == 2


def test_a_repaired_delta_is_taken(live: Live) -> None:
    start = live.version()
    live.start()
    live.repository.pause(NAME)
    snapshot = live.delta(start)
    file = next(snapshot.path.glob("tables/item*"))
    data = file.read_bytes()
    file.write_bytes(data[:-1] + b"\0")
    live.repository.resume(NAME)
    live.until(live.refused)
    file.write_bytes(data)
    live.reaches(snapshot)
    assert not live.refused()


def test_a_bad_version_is_refused_while_the_one_before_goes_on(live: Live) -> None:
    start = live.version()
    live.start()
    live.world.publish(wrong_by=0.5)
    live.until(live.refused)
    assert [(entry.version, entry.state) for entry in live.repository.index()] == [("1", "READY"), ("2", "UNAVAILABLE")]
    assert live.repository.is_ready()
    (one,) = live.chain(start, 1)
    live.reaches(one)
    store = live.folder / "store" / NAME
    assert live.repository.get(NAME).version == "1"
    live.until(lambda: {path.name for path in store.iterdir() if path.is_dir()} == {"1", "deltas", "versions"})
    live.until(lambda: len(list((store / "versions").iterdir())) == 1)
    third = live.version()
    live.reaches(third)
    live.until(lambda: {path.name for path in store.iterdir() if path.is_dir()} == {"3", "deltas", "versions"})


def test_a_signature_that_breaks_clients_waits_until_it_is_allowed(live: Live) -> None:
    start = live.version()
    live.start()
    compatible = {**SPEC, "inputs": [*SPEC["inputs"], {"name": "extra", "dtype": "INT64", "missing": "null"}]}
    second = live.version(spec=compatible)
    live.reaches(second)
    breaking = {**SPEC, "inputs": [*SPEC["inputs"], {"name": "other", "dtype": "INT64"}]}
    live.world.publish(spec=breaking)
    live.until(lambda: "'extra' is gone" in (live.report()["waiting"] or ""))
    assert not live.refused()
    assert live.repository.index()[1].state == "UNAVAILABLE"
    live.reaches(live.delta(second))
    with pytest.raises(NotFound):
        live.repository.allow(NAME, "9", ["extra"])
    live.repository.allow(NAME, "3", ["extra"])
    live.until(lambda: "'other' is new" in (live.report()["waiting"] or ""))
    live.repository.allow(NAME, "3", ["other"])
    live.until(lambda: live.repository.get(NAME).version == "3")
    assert start is not None
