"""Byte strings are found wherever they lie in a file, also across the pieces that it is read in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.forgetting import Needles, needles
from tests.support.examples import examples


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 4)), max_size=12),
    st.sampled_from([16, 28, 64, 1 << 20]),
    st.integers(0, 2**32),
)
@settings(max_examples=examples(60), deadline=None)
def test_needles_are_counted_as_a_plain_search_counts_them(
    tmp_path_factory: pytest.TempPathFactory, planted: list[tuple[int, int]], piece: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    # Few different bytes, so that beginnings are alike.
    sought = [rng.integers(0, 3, length).astype(np.uint8).tobytes() for length in (8, 9, 12, 31, 64)]
    data = bytearray(rng.integers(0, 3, 500).astype(np.uint8).tobytes())
    for place, number in planted:
        data[place : place + len(sought[number])] = sought[number]
    found = Needles()
    kept = {needle: str(place) for place, needle in enumerate(sought) if found.add(needle, str(place))}
    path = tmp_path_factory.mktemp("needles") / "file"
    path.write_bytes(bytes(data))
    expected: dict[str, int] = {}
    for needle, what in kept.items():
        count = sum(data.startswith(needle, place) for place in range(len(data)))
        if count:
            expected[what] = count
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(needles, "_PIECE_BYTES", piece)
        read: list[int] = []
        assert found.search(path, read.append) == expected
        assert sum(read) == len(data)


@pytest.mark.parametrize("step", [1, 2, 4])
def test_a_step_leaves_out_other_places(tmp_path: Path, step: int) -> None:
    found = Needles()
    assert found.add(b"abcdefgh12", "row")
    for place in range(8):
        (tmp_path / "file").write_bytes(b"." * place + b"abcdefgh12" + b"." * 7)
        assert found.search(tmp_path / "file", step=step) == ({"row": 1} if place % step == 0 else {})


def test_what_lies_everywhere_is_no_needle(tmp_path: Path) -> None:
    found = Needles()
    assert not found.add(b"short", "value")
    assert not found.add(bytes(64), "row")
    assert not found.add(np.full(8, 0.5, "<f4").tobytes(), "row")
    assert not found.add_id(12)
    assert not len(found)
    assert found.add_id(2**60 + 7)
    for text in (
        (2**60 + 7).to_bytes(8, "little"),
        b"user 1152921504606846983 came",
        (2**60 + 7 ^ 1 << 63).to_bytes(8, "big"),
    ):
        (tmp_path / "file").write_bytes(b"x" + text)
        assert found.search(tmp_path / "file") == {"id": 1}
