from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from serving.errors import AlreadyExists
from serving.protocol.binary_tensors import SharedInputs
from serving.protocol.regions import RegionPart, region_part
from serving.repository.regions import FOLDER, MAX_REGIONS, RegionName, SharedRegions
from storage.errors import InvalidInput, NotFound, Overloaded, Unsupported

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the system has no /dev/shm")

PREFIXES = ("emberline-test-",)


@pytest.fixture
def segment() -> Iterator[Path]:
    """Makes a segment of 64 bytes, 0 to 63."""
    path = FOLDER / f"emberline-test-{secrets.token_hex(6)}"
    path.write_bytes(bytes(range(64)))
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def regions() -> SharedRegions:
    return SharedRegions(1 << 20, prefixes=PREFIXES)


def test_a_part_of_a_region_is_read_and_written_where_it_lies(regions: SharedRegions, segment: Path) -> None:
    regions.register(RegionName("r", "/" + segment.name, 16, 32))
    assert bytes(regions.read(RegionPart("r", 4, 3))) == bytes([20, 21, 22])
    regions.write(RegionPart("r", 30, 2), b"ab")
    assert segment.read_bytes() == bytes(range(46)) + b"ab" + bytes(range(48, 64))


def test_what_was_read_is_a_copy(regions: SharedRegions, segment: Path) -> None:
    regions.register(RegionName("r", segment.name, 0, 64))
    found = regions.read(RegionPart("r", 0, 4))
    regions.write(RegionPart("r", 0, 4), b"wxyz")
    assert bytes(found) == bytes(range(4))


@pytest.mark.parametrize("part", [RegionPart("r", 0, 33), RegionPart("r", 33, 0), RegionPart("r", 2**62, 2**62)])
def test_what_lies_outside_of_a_region_is_refused(regions: SharedRegions, segment: Path, part: RegionPart) -> None:
    regions.register(RegionName("r", segment.name, 16, 32))
    with pytest.raises(InvalidInput, match="Invalid offset"):
        regions.read(part)
    with pytest.raises(InvalidInput, match="Invalid offset"):
        regions.write(part, b"")


def test_an_output_that_does_not_fit_writes_nothing(regions: SharedRegions, segment: Path) -> None:
    regions.register(RegionName("r", segment.name, 0, 64))
    with pytest.raises(InvalidInput, match="leaves 3"):
        regions.write(RegionPart("r", 0, 3), b"four")
    assert segment.read_bytes() == bytes(range(64))


def test_a_segment_that_shrinks_under_the_server_is_an_error_and_no_crash(
    regions: SharedRegions, segment: Path
) -> None:
    regions.register(RegionName("r", segment.name, 0, 64))
    os.truncate(segment, 8)
    with pytest.raises(InvalidInput, match="smaller"):
        regions.read(RegionPart("r", 0, 64))
    with pytest.raises(InvalidInput, match="smaller"):
        regions.write(RegionPart("r", 32, 4), b"abcd")
    assert segment.stat().st_size == 8, "nothing grows it again"


def test_the_inputs_of_a_request_are_bounded_and_nothing_is_read_that_does_not_fit(segment: Path) -> None:
    regions = SharedRegions(1000, prefixes=PREFIXES)
    os.truncate(segment, 1 << 30)
    regions.register(RegionName("r", segment.name, 0, 1 << 30))
    inputs = SharedInputs(regions)
    assert len(inputs.tensor("a", "INT64", (100, 1), 100, RegionPart("r", 0, 800)).values) == 100
    with pytest.raises(InvalidInput, match="over 1000 bytes"):
        inputs.tensor("b", "INT64", (26, 1), 26, RegionPart("r", 0, 208))
    with pytest.raises(InvalidInput, match="needs 8 bytes"):
        SharedInputs(regions).tensor("c", "INT64", (1, 1), 1, RegionPart("r", 0, 1 << 29))


def test_what_all_requests_hold_is_bounded_and_given_back(segment: Path) -> None:
    regions = SharedRegions(1 << 20, 100, prefixes=PREFIXES)
    regions.register(RegionName("r", segment.name, 0, 64))
    first = np.frombuffer(regions.read(RegionPart("r", 0, 64)), np.uint8)
    with pytest.raises(Overloaded, match="64 bytes"):
        regions.read(RegionPart("r", 0, 64))
    del first
    assert bytes(regions.read(RegionPart("r", 0, 64))) == bytes(range(64))


@pytest.mark.parametrize(
    "key", ["", "/", "..", "/../etc/passwd", "a/b", "/sem.x", "sem.x", ".hidden", "a\0b", "x" * 300]
)
def test_a_key_that_is_no_segments_name_is_refused(regions: SharedRegions, key: str) -> None:
    with pytest.raises(InvalidInput, match="key"):
        regions.register(RegionName("r", key, 0, 1))


def test_a_link_out_of_the_folder_is_not_followed(regions: SharedRegions, segment: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    segment.unlink()
    segment.symlink_to(tmp_path / "secret")
    with pytest.raises(InvalidInput, match="Unable to open"):
        regions.register(RegionName("r", segment.name, 0, 6))


def test_a_region_is_registered_once_and_forgotten_by_name(regions: SharedRegions, segment: Path) -> None:
    said = RegionName("r", segment.name, 0, 64)
    regions.register(said)
    with pytest.raises(AlreadyExists, match="already in manager"):
        regions.register(said)
    assert [entry.key for entry in regions.status("r")] == [segment.name]
    regions.unregister("never there")
    regions.unregister("r")
    with pytest.raises(NotFound, match="Unable to find"):
        regions.status("r")
    with pytest.raises(InvalidInput, match="register it first"):
        regions.read(RegionPart("r", 0, 1))


def test_regions_larger_than_their_segment_are_refused(regions: SharedRegions, segment: Path) -> None:
    for offset, size in ((0, 65), (64, 1), (-1, 2), (0, -1), (2**63, 1)):
        with pytest.raises(InvalidInput):
            regions.register(RegionName("r", segment.name, offset, size))
    assert regions.status() == []


def test_descriptors_are_closed_and_their_number_is_bounded(regions: SharedRegions, segment: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for number in range(MAX_REGIONS):
        regions.register(RegionName(str(number), segment.name, 0, 64))
    with pytest.raises(Overloaded):
        regions.register(RegionName("one more", segment.name, 0, 64))
    regions.unregister()
    assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_shared_memory_that_is_off_says_how_to_turn_it_on(segment: Path) -> None:
    with pytest.raises(Unsupported, match="--shared-memory"):
        SharedRegions(1 << 20).register(RegionName("r", segment.name, 0, 1))


@pytest.mark.parametrize("key", ["/other", "emberline-tes", "", "/"])
def test_segments_whose_names_begin_otherwise_are_refused(regions: SharedRegions, key: str) -> None:
    with pytest.raises(InvalidInput, match=r"begin with 'emberline-test-'|not the name of a segment"):
        regions.register(RegionName("r", key, 0, 1))
    assert regions.is_empty


def test_parameters_name_a_part() -> None:
    assert region_part("input 'x'", {}) is None
    given = {"shared_memory_region": "r", "shared_memory_byte_size": 8, "shared_memory_offset": 16}
    part = region_part("input 'x'", given)
    assert part == RegionPart("r", 16, 8)
    assert part is not None
    assert part.parameters(8) == given
    assert RegionPart("r", 0, 8).parameters(4) == {"shared_memory_region": "r", "shared_memory_byte_size": 4}


@pytest.mark.parametrize(
    "given",
    [
        {"shared_memory_byte_size": 8},
        {"shared_memory_offset": 0},
        {"shared_memory_region": "r"},
        {"shared_memory_region": "", "shared_memory_byte_size": 8},
        {"shared_memory_region": 3, "shared_memory_byte_size": 8},
        {"shared_memory_region": "r", "shared_memory_byte_size": -1},
        {"shared_memory_region": "r", "shared_memory_byte_size": "8"},
        {"shared_memory_region": "r", "shared_memory_byte_size": 8, "shared_memory_offset": True},
        {"shared_memory_region": "r", "shared_memory_byte_size": 8, "shared_memory_offset": 2**63},
    ],
)
def test_half_a_part_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match="shared_memory"):
        region_part("input 'x'", given)
