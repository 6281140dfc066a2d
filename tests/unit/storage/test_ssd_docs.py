"""docs/ssd.md is enough to read a page file: a reader written from it alone reads every row. Its Python runs too."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np
import pytest

from storage._pages import crc32c
from storage.tiers.ssd.tier import SsdTier

PAGE = (Path(__file__).parents[3] / "docs" / "ssd.md").read_text(encoding="utf-8")
MASK = (1 << 64) - 1


def mixed(i: int) -> int:
    x = ((i & MASK) + 0x9E3779B97F4A7C15) & MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def read_as_described(data: bytes) -> tuple[dict[str, int | bytes], dict[int, bytes]]:
    """Reads header and rows of a page file, and checks every promise of the page."""
    assert data[:8] == b"EMBPAGES"
    version, page_bytes, row_bytes, per_page, table, filter_bytes = struct.unpack_from("<6I", data, 8)
    (row_type,) = struct.unpack_from("16s", data, 32)
    mark, count, pages = struct.unpack_from("<3Q", data, 48)
    first, last = struct.unpack_from("<2q", data, 72)
    directory_offset, filters_offset, file_bytes = struct.unpack_from("<3Q", data, 88)
    directory_crc, filters_crc, probes, header_crc = struct.unpack_from("<4I", data, 112)
    assert version == 1
    assert header_crc == crc32c(data[:124])
    assert file_bytes == len(data)
    assert directory_offset == 4096 + pages * page_bytes
    assert crc32c(data[directory_offset : directory_offset + pages * 8]) == directory_crc
    assert crc32c(data[filters_offset : filters_offset + pages * filter_bytes]) == filters_crc
    directory = struct.unpack_from(f"<{pages}q", data, directory_offset)
    assert 3 * per_page * (row_bytes + 8) >= 2 * page_bytes
    rows: dict[int, bytes] = {}
    for number in range(pages):
        page = data[4096 + number * page_bytes :][:page_bytes]
        crc, here, stamp = struct.unpack_from("<IIQ", page)
        assert crc == crc32c(page[4:])
        assert stamp == (mark + number) & MASK
        ids = struct.unpack_from(f"<{here}q", page, 16)
        assert list(ids) == sorted(set(ids))
        assert ids[0] == directory[number]
        bits = data[filters_offset + number * filter_bytes :][:filter_bytes]
        for position, i in enumerate(ids):
            at = 16 + per_page * 8 + position * row_bytes
            rows[i] = page[at : at + row_bytes]
            x = mixed(i)
            for _ in range(probes):
                bit = (x >> 32) * (8 * filter_bytes) >> 32
                assert bits[bit // 8] >> bit % 8 & 1
                x = (x * 0xD1342543DE82EF95 + 0x9E3779B97F4A7C15) & MASK
    assert len(rows) == count
    assert list(rows) == sorted(rows)
    assert (first, last) == (min(rows), max(rows))
    return {"row_bytes": row_bytes, "table": table, "row_type": row_type.rstrip(b"\0")}, rows


@pytest.mark.parametrize("row_bytes", [8, 128, 5000])
def test_a_page_file_is_what_the_page_says(tmp_path: Path, row_bytes: int) -> None:
    rng = np.random.default_rng(row_bytes)
    ids = np.unique(np.concatenate([rng.integers(-(2**63), 2**63 - 1, 300), [-(2**63), -1, 0, 2**63 - 1]]))
    rows = rng.integers(0, 256, (len(ids), row_bytes)).astype(np.uint8)
    ssd = SsdTier.open(tmp_path / "s")
    ssd.bulk_load(3, [(ids, rows)], row_type="bf16")
    ssd.close()
    (path,) = (tmp_path / "s" / "pages").iterdir()
    header, read = read_as_described(path.read_bytes())
    assert header == {"row_bytes": row_bytes, "table": 3, "row_type": b"bf16"}
    assert read == dict(zip(ids.tolist(), (row.tobytes() for row in rows), strict=True))


def test_the_python_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    SsdTier.open(tmp_path / "store").close()
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    exec(code, {})
    assert capsys.readouterr().out == ""  # a sound store: nothing is dropped
