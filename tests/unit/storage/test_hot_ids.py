"""The list of hot ids: back as it was written, or not at all."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import numpy as np
import pytest

from storage.errors import StoreError, UnsafeArtifact
from storage.tiers.hot_ids import HOT_IDS, HotIds, decode_hot_ids, encode_hot_ids, load_hot_ids, save_hot_ids


def lists() -> dict[str, HotIds]:
    return {
        "user": HotIds(np.array([2**63 - 1, -(2**63), -1, 7]), np.array([255, 9, 1, 0], np.uint8), 10.5, 9.0),
        "item": HotIds(np.empty(0, np.int64), np.empty(0, np.uint8)),
    }


def test_it_comes_back_in_its_order(tmp_path: Path) -> None:
    assert load_hot_ids(tmp_path, 100) == {}
    for _ in range(2):
        save_hot_ids(tmp_path, lists())
    back = load_hot_ids(tmp_path, 100)
    assert list(back) == ["user", "item"]
    for name, hot in lists().items():
        assert back[name].ids.dtype == np.int64
        assert back[name].ids.tolist() == hot.ids.tolist()
        assert back[name].counts.tolist() == hot.counts.tolist()
        assert (back[name].found, back[name].hits) == (hot.found, hot.hits)
    assert [entry.name for entry in tmp_path.iterdir()] == [HOT_IDS]


def test_any_damaged_byte_and_any_lost_end_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_hot_ids(tmp_path, lists())
    whole = (tmp_path / HOT_IDS).read_bytes()
    damaged = [whole[:end] for end in range(len(whole))]
    damaged += [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole))]
    with caplog.at_level(logging.CRITICAL):
        for data in [*damaged, whole + b"x"]:
            (tmp_path / HOT_IDS).write_bytes(data)
            assert load_hot_ids(tmp_path, 100) == {}


@pytest.mark.parametrize(
    ("header", "wrong"),
    [
        (b'{"meaning":"","tables":[{"name":"user","ids":-1,"found":0,"hits":0}]}', "greater than or equal to 0"),
        (b'{"meaning":"","tables":[{"name":"user","ids":5,"found":0,"hits":0}]}', "does not fit its length"),
        (b'{"meaning":"","tables":[{"name":"user","ids":4,"found":1e999,"hits":0}]}', "finite"),
        (b'{"meaning":"","tables":' + b"[" * 100_000, "nested deeper"),
        (b"[]", "not one of a list of ids"),
    ],
)
def test_a_header_that_nobody_writes_is_refused(header: bytes, wrong: str) -> None:
    """Lists come from other machines: a right digest does not mean that the content is right."""
    ids = encode_hot_ids({"user": lists()["user"]})[-4 * 9 - 32 : -32]
    body = b"EMBHOT2\n" + len(header).to_bytes(4, "little") + header + ids
    with pytest.raises(UnsafeArtifact, match=wrong):
        decode_hot_ids(body + hashlib.sha256(body).digest())


def test_one_that_is_too_large_or_cannot_be_read_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / HOT_IDS).write_bytes(b"x" * (2 << 20))
    assert load_hot_ids(tmp_path, 100) == {}
    assert "larger than a list of 100 ids" in caplog.text
    (tmp_path / HOT_IDS).unlink()
    (tmp_path / HOT_IDS).mkdir()
    assert load_hot_ids(tmp_path, 100) == {}
    with pytest.raises(StoreError, match=HOT_IDS):
        save_hot_ids(tmp_path, lists())
    assert [entry.name for entry in tmp_path.iterdir()] == [HOT_IDS]
    with pytest.raises(StoreError, match=HOT_IDS):
        save_hot_ids(tmp_path / "gone", lists())
