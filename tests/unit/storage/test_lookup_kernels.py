"""Launches of a card's lookups have what the kernels expect, under the names that the kernels have."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from storage import kernels
from storage.errors import ConfigError, DeviceError
from storage.kernels import Kernels, compile_kernel
from storage.lookup_kernels import FEATURE_SHIFT, FEATURE_WORDS, SOURCES, LookupKernels

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[dev]'")

CUDA = Path(__file__).parents[3] / "cuda"
BASE = 0x7F00_0000_0000


class RecordingDriver:
    """CuPy's binding of the driver, as far as it is used. launches: function, grid, block, stream, `values` values."""

    def __init__(self, values: int) -> None:
        self.values = values
        self.launches: list[tuple[Any, ...]] = []
        self.error: RuntimeError | None = None

    def launchKernel(self, function: int, *rest: int) -> None:  # noqa: N802
        if self.error is not None:
            raise self.error
        *shape, shared, stream, parameters, extra = rest
        assert (shared, extra) == (0, 0)
        addresses = ctypes.cast(parameters, ctypes.POINTER(ctypes.c_void_p))
        values = [ctypes.c_int64.from_address(addresses[place] or 0).value for place in range(self.values)]
        self.launches.append((function, tuple(shape[:3]), tuple(shape[3:]), stream, values))


NAMES = [name for names in SOURCES.values() for name in names]
LOOKUP = {"features": BASE, "header": BASE + 1, "rows": 512, "misses": BASE + 2, "miss_count": BASE + 3, "miss_room": 9}
LATE = {"features": BASE, "header": BASE + 1, "rows": 512, "entries": BASE + 2, "count": BASE + 3, "room": 100}
# Method, arguments, kernel, grid, values.
LAUNCHES: list[tuple[str, tuple[str, ...], dict[str, int], str, tuple[int, int, int], list[int]]] = [
    (
        "gather",
        (output,),
        LOOKUP | {"feature_count": 5, "longest": 1000, "use_every": 8},
        f"lookup_gather_{output}",
        (4, 5, 1),
        [BASE, BASE + 1, 512, BASE + 2, BASE + 3, 9, 7],
    )
    for output in ("fp32", "fp16", "bf16")
]
LAUNCHES += [
    (
        "pool",
        (),
        LOOKUP | {"feature_count": 26, "use_every": 0},
        "lookup_pool",
        (64, 26, 1),
        [BASE, BASE + 1, 512, BASE + 2, BASE + 3, 9, -1],
    ),
    (
        "scatter_late",
        ("bf16",),
        LATE | {"staging": BASE + 4},
        "late_rows_bf16",
        (13, 1, 1),
        [BASE, BASE + 1, 512, BASE + 2, BASE + 3, 100, BASE + 4, 0],
    ),
    (
        "add_late",
        (),
        LATE | {"staging": BASE + 4, "weights": BASE + 5},
        "late_rows_add",
        (13, 1, 1),
        [BASE, BASE + 1, 512, BASE + 2, BASE + 3, 100, BASE + 4, BASE + 5],
    ),
    (
        "publish_rows",
        (),
        {
            "entries": BASE,
            "count": BASE + 1,
            "room": 10**6,
            "staging": BASE + 2,
            "staged": 70,
            "slab": BASE + 3,
            "slots": 10**6,
            "stride": 512,
        },
        "publish_rows",
        (1024, 1, 1),
        [BASE, BASE + 1, 10**6, BASE + 2, 70, BASE + 3, 10**6, 512],
    ),
    (
        "publish_stores",
        (),
        {"entries": BASE, "count": BASE + 1, "room": 0, "lines": BASE + 2, "line_count": 99},
        "publish_stores",
        (1, 1, 1),
        [BASE, BASE + 1, 0, BASE + 2, 99],
    ),
]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Sources that were loaded; the functions of the kernels are their places in NAMES."""
    sources: list[str] = []

    def pretend(self: Kernels, source: str, names: Sequence[str]) -> dict[str, int]:
        sources.append(source)
        return {name: NAMES.index(name) for name in names}

    monkeypatch.setattr(Kernels, "functions", pretend)
    return sources


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], RecordingDriver]:
    def record(values: int) -> RecordingDriver:
        driver = RecordingDriver(values)
        monkeypatch.setattr(kernels, "_driver", lambda: driver)
        return driver

    return record


@pytest.mark.parametrize(("method", "outputs", "arguments", "kernel", "grid", "values"), LAUNCHES)
def test_a_launch_has_what_the_kernel_expects(
    method: str,
    outputs: tuple[str, ...],
    arguments: dict[str, int],
    kernel: str,
    grid: tuple[int, int, int],
    values: list[int],
    loaded: list[str],
    record: Callable[[int], RecordingDriver],
) -> None:
    driver = record(len(values))
    on = LookupKernels(Kernels(0, (9, 0), None))
    for _ in range(2):
        getattr(on, method)(*outputs, **arguments, stream=5)
    assert driver.launches == [(NAMES.index(kernel), grid, (256, 1, 1), 5, values)] * 2
    assert loaded == list(SOURCES)


def test_every_kernel_is_launched_and_is_in_its_source() -> None:
    launched = {launch[3] for launch in LAUNCHES} | {"late_rows_fp32", "late_rows_fp16"}
    assert launched == set(NAMES)
    for source, names in SOURCES.items():
        cubin = compile_kernel(source, "sm_90", None)
        for name in names:
            assert b".text." + name.encode() + b"\0" in cubin


def test_a_kernel_takes_as_many_values_as_a_launch_gives() -> None:
    for _, _, _, kernel, _, values in LAUNCHES:
        (source,) = (source for source, names in SOURCES.items() if kernel in names)
        text = (CUDA / f"{source}.cu").read_text(encoding="utf-8")
        parameters = re.search(rf"{kernel}\(const([^)]*)\)", text) or re.search(r"name\(const([^)]*)\)", text)
        assert parameters is not None
        assert len(parameters[1].split(",")) == len(values), kernel


def test_the_layout_of_the_features_is_that_of_the_kernels() -> None:
    text = (CUDA / "lookup.cuh").read_text(encoding="utf-8")
    assert f"kFeatureWords = {FEATURE_WORDS};" in text
    assert f"kFeatureShift = {FEATURE_SHIFT};" in text


def test_threads_of_a_block_are_what_the_kernels_were_compiled_for() -> None:
    for source in SOURCES:
        bounds = re.findall(r"__launch_bounds__\((\d+)", (CUDA / f"{source}.cu").read_text(encoding="utf-8"))
        assert bounds
        assert set(bounds) == {str(kernels.THREADS)}


def test_no_feature_is_no_launch(loaded: list[str], record: Callable[[int], RecordingDriver]) -> None:
    driver = record(7)
    LookupKernels(Kernels(0, (9, 0), None)).pool(**LOOKUP, feature_count=0, use_every=0, stream=5)
    assert driver.launches == []


@pytest.mark.parametrize("use_every", [-1, 3, 12])
def test_a_sample_that_is_no_power_of_two_is_refused(use_every: int, loaded: list[str]) -> None:
    with pytest.raises(ConfigError, match="use_every: expected 0 or a power of two, got"):
        LookupKernels(Kernels(0, (9, 0), None)).pool(**LOOKUP, feature_count=1, use_every=use_every, stream=5)


def test_a_card_that_refuses_is_a_device_error(loaded: list[str], record: Callable[[int], RecordingDriver]) -> None:
    driver = record(7)
    driver.error = RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered")
    with pytest.raises(DeviceError, match=r"GPU 2 did not start kernel lookup_pool: CUDA_ERROR_ILLEGAL") as caught:
        LookupKernels(Kernels(2, (9, 0), None)).pool(**LOOKUP, feature_count=1, use_every=0, stream=5)
    assert caught.value.__cause__ is driver.error
