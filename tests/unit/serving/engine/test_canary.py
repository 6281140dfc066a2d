from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np

from serving.engine.canary import routing_point


def test_it_is_the_digest_of_the_key() -> None:
    for length in (1, 63, 64, 127, 128, 129, 256, 1000):
        for name in ("ranker", "m" * 64, "\u00e4" * 40):
            key = "k" * length + "\u00e9" * (length % 3)
            digest = hashlib.blake2b(key.encode(), digest_size=8, key=name.encode()[:64]).digest()
            assert routing_point(name, key) == int.from_bytes(digest, "big") / 2**64


def test_a_key_stays_where_it_is_in_every_process() -> None:
    code = "from serving.engine.canary import routing_point; print(repr(routing_point('ranker', 'user-17')))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert float(other) == routing_point("ranker", "user-17")


def test_keys_are_spread_evenly_and_each_model_spreads_its_own_way() -> None:
    points = np.array([routing_point("ranker", str(key)) for key in range(20_000)])
    assert points.min() >= 0
    assert points.max() < 1
    shares = np.histogram(points, bins=10, range=(0, 1))[0] / len(points)
    assert np.abs(shares - 0.1).max() < 0.01  # five standard deviations
    other = np.array([routing_point("towers", str(key)) for key in range(20_000)])
    assert abs(np.corrcoef(points, other)[0, 1]) < 0.04


def test_without_a_key_chance_decides() -> None:
    assert len({routing_point("ranker", "") for _ in range(10)}) == 10


def test_any_text_is_a_key() -> None:
    assert 0 <= routing_point("m" * 300, "\ud800 é " * 100) < 1
