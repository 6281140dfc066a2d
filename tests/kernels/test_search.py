"""Tests the search in a bucket (cuda/cache_bucket.cuh) as a GPU's compiler sees it: how many loads wait for others."""

from __future__ import annotations

import pytest

from storage.hbm import kernels
from storage.hbm.kernels import OPTIONS, read_sources, source_folder

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[dev]'")


def acquiring_loads(name: str, *extra: str) -> int:
    """Counts acquiring loads in the kernel's code for a virtual architecture, before an assembler changes it."""
    nvrtc, sources = kernels._compiler(), read_sources(source_folder())
    headers = [file for file in sources if file.endswith(".cuh")]
    program = nvrtc.createProgram(
        sources[f"{name}.cu"].decode(), f"{name}.cu", [sources[file] for file in headers], [h.encode() for h in headers]
    )
    try:
        nvrtc.compileProgram(program, (*OPTIONS, *extra, "-arch=compute_90"))
        return nvrtc.getPTX(program).decode().count("ld.acquire")
    finally:
        nvrtc.destroyProgram(program)


@pytest.mark.slow
def test_a_line_costs_one_acquiring_load_and_not_one_for_each_way() -> None:
    now = acquiring_loads("lookup_pool")
    in_turn = acquiring_loads("lookup_pool", "-DEMBERLINE_PROBE_IN_TURN")
    # For each search: two buckets, and the flags between them, which both versions load once.
    assert now > 0
    assert now * 3 == in_turn
