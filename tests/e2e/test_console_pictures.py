"""Makes the pictures of docs/console.md as its command does, and weighs what the console loads for its first paint."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from benchmarks.peers import PeerMissingError
from tests.external.console_pictures import FOLDER, HEIGHT, MOST_BYTES, NAMES, WIDTH, FirstPaints, make

MOST_SENT_BYTES = 200_000


@pytest.mark.long
def test_the_pictures_show_something_and_the_page_is_light(tmp_path: Path) -> None:
    try:
        found = make(tmp_path, runs=1, traffic_s=5.0)
    except PeerMissingError as error:
        pytest.skip(f"there is no browser: {error}")
    print(found)  # How long it took says more of the machine than of the page, and is not judged.
    assert {path.stem for path in tmp_path.iterdir()} == set(NAMES)
    for name in NAMES:
        width, height, lines = png(tmp_path / f"{name}.png")
        assert (width, height) == (WIDTH, HEIGHT)
        assert len(set(lines)) > HEIGHT // 4, f"{name}.png is blank or nearly so"
    assert 10_000 < found.sent_bytes <= MOST_SENT_BYTES


@pytest.mark.parametrize("name", NAMES)
def test_a_committed_picture_is_one_that_the_command_could_make(name: str) -> None:
    width, height, lines = png(FOLDER / f"{name}.png")
    assert (width, height) == (WIDTH, HEIGHT)
    assert len(set(lines)) > HEIGHT // 4
    assert (FOLDER / f"{name}.png").stat().st_size <= MOST_BYTES


def test_a_blank_picture_is_found(tmp_path: Path) -> None:
    scanlines = (b"\0" + b"\xff" * WIDTH * 3) * HEIGHT
    header = struct.pack(">2I5B", WIDTH, HEIGHT, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(scanlines)), (b"IEND", b"")]
    path = tmp_path / "blank.png"
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + b"".join(struct.pack(">I", len(body)) + kind + body + b"\0" * 4 for kind, body in parts)
    )
    width, height, lines = png(path)
    assert (width, height, len(lines), len(set(lines))) == (WIDTH, HEIGHT, HEIGHT, 1)


def test_figures_are_said_in_one_line() -> None:
    assert str(FirstPaints((300.0, 100.0, 200.0), 2_000, 1_000)) == (
        "first paint with an empty cache: 200 ms in the median of 3, 300 at most; 2,000 bytes, sent as 1,000"
    )


def png(path: Path) -> tuple[int, int, list[bytes]]:
    """Returns the width and the height of a picture, and its lines as PNG filters them: those of a blank are equal."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n"), f"{path} is no PNG"
    place, packed = 8, b""
    width = height = 0
    while place < len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        body = data[place + 8 : place + 8 + length]
        if kind == b"IHDR":
            width, height = struct.unpack_from(">II", body)
        elif kind == b"IDAT":
            packed += body
        place += length + 12
    lines = zlib.decompress(packed)
    stride = len(lines) // height
    return width, height, [lines[start : start + stride] for start in range(0, len(lines), stride)]
