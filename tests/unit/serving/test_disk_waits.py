"""The time that lookups wait for the disk is that of the last ones, and of enough of them."""

from __future__ import annotations

import pytest
from pydantic import JsonValue

from serving.updates.disk_waits import WINDOW_S, DiskWaits

MS = 1_000_000


def waits(*looks: tuple[float, int, int]) -> JsonValue:
    made = DiskWaits()
    for now, reads, ms in looks:
        made.note(now, reads, ms * MS, 1e12 + 1000 * now)
    return made.to_json_value()["disk_wait_ms"]


@pytest.mark.parametrize(
    ("looks", "mean_ms"),
    [
        ([], None),
        ([(0.0, 1000, 5000)], None),
        ([(0.0, 0, 0), (2.0, 19, 1900)], None),
        ([(0.0, 0, 0), (2.0, 20, 2000)], 100.0),
        # A disk that was fast for hours and is slow now.
        ([(0.0, 1_000_000, 100_000), (2.0, 1_000_050, 105_000)], 100.0),
        # What is older than the window does not count; a look that comes too soon is left out.
        ([(0.0, 0, 0), (10.0, 100, 90_000), (10.0 + WINDOW_S, 200, 91_000)], 10.0),
        ([(0.0, 0, 0), (10.0, 100, 90_000), (11.0 + WINDOW_S, 110, 90_010)], None),
        # Of many fast lookups and few slow ones, the slow ones came last.
        ([(0.0, 0, 0), (2.0, 4000, 400), (4.0, 4012, 1840), (6.0, 4024, 3280)], 120.0),
        ([(0.0, 0, 0), (2.0, 100, 1000), (2.1, 200, 90_000)], 10.0),
        # Another version of the model, or another store, counts from 0.
        ([(0.0, 500, 50_000), (2.0, 0, 0), (4.0, 100, 500)], 5.0),
    ],
)
def test_the_mean_is_that_of_the_last_lookups(looks: list[tuple[float, int, int]], mean_ms: float | None) -> None:
    assert waits(*looks) == mean_ms


def test_looks_are_bounded() -> None:
    made = DiskWaits()
    for number in range(10_000):
        made.note(number * 0.5, number * 30, number * 30 * MS, 1e12)
    assert len(made._looks) <= 2 + 2 * WINDOW_S
    assert made.to_json_value() == {"disk_wait_ms": 1.0, "disk_slow_since_unix_ms": None}


def test_the_time_since_which_a_disk_is_slow_is_that_of_the_first_look() -> None:
    made, reads, waited_ms, since = DiskWaits(), 0, 0, []
    # Lookups since the look before, and how long each waited: fast, slow, too few to say, slow, fast, slow again.
    for number, (more, each_ms) in enumerate([(100, 1), (100, 60), (100, 70), (5, 1), (100, 80), (100, 1), (100, 60)]):
        reads, waited_ms = reads + more, waited_ms + more * each_ms
        made.note(2.0 * number, reads, waited_ms * MS, 1e12 + number)
        since.append(made.to_json_value()["disk_slow_since_unix_ms"])
    assert since == [None, 10**12 + 1, 10**12 + 1, 10**12 + 1, 10**12 + 1, None, 10**12 + 6]
    made.note(100.0, reads, waited_ms * MS, 1e12 + 100)
    made.note(200.0, reads, waited_ms * MS, 1e12 + 200)
    assert made.to_json_value() == {"disk_wait_ms": None, "disk_slow_since_unix_ms": None}
    # What was known before a long rest, or of another store, does not go on.
    made.note(202.0, reads + 100, (waited_ms + 6000) * MS, 1e12 + 202)
    assert made.to_json_value()["disk_slow_since_unix_ms"] == 10**12 + 202
    made.note(204.0, 0, 0, 1e12 + 204)
    made.note(206.0, 100, 6000 * MS, 1e12 + 206)
    assert made.to_json_value()["disk_slow_since_unix_ms"] == 10**12 + 206
