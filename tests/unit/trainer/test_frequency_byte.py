"""Tests the byte that stores how frequent a published row is."""

from __future__ import annotations

import numpy as np

from trainer.publishing.embedding_layers import frequency_byte


def value_of(code: int) -> int:
    """Decodes the byte as the DRAM table does."""
    return code if code < 16 else (16 + (code & 15)) << ((code >> 4) - 1)


def test_a_count_is_exact_to_31_and_within_a_sixteenth_up_to_half_a_million() -> None:
    counts = np.unique(np.concatenate([np.arange(5000), np.geomspace(5000, 507_000, 500).astype(int)])).astype(
        np.uint32
    )
    values = np.array([value_of(code) for code in frequency_byte(counts).tolist()])
    assert np.array_equal(values[:32], np.arange(32))
    assert (values <= counts).all()
    assert (values > counts * (1 - 1 / 16) - 1).all()


def test_hotter_never_has_a_smaller_byte_and_the_largest_counts_share_the_last() -> None:
    counts = np.array([0, 1, 507_903, 507_904, 10**6, 2**32 - 1], np.uint32)
    codes = frequency_byte(counts).tolist()
    assert codes == sorted(codes)
    assert codes[-3:] == [255, 255, 255]
