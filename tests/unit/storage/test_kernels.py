"""Kernels are compiled without a GPU, kept under a key over all that they depend on, launched as they expect."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from storage import compile_kernels
from storage.errors import ConfigError, DeviceError, NotFound
from storage.hbm import kernel_sources, kernels
from storage.hbm.kernel_sources import ACROSS, SOURCES
from storage.hbm.kernels import OPTIONS, Kernels, compile_kernel, gpu_arch, is_kept, source_folder

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[dev]'")

CUDA = Path(__file__).parents[3] / "cuda"
KERNEL = '#include "value.cuh"\nextern "C" __global__ void small(int* out) { *out = VALUE; }\n'
GPUS = ("sm_80", "sm_90", "sm_100")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Writes the sources of one small kernel that includes a header."""
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "small.cu").write_text(KERNEL, encoding="utf-8")
    (folder / "value.cuh").write_text("#define VALUE 7\n", encoding="utf-8")
    return folder


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the names of what is compiled from now on; nothing is really compiled."""
    names: list[str] = []

    def pretend(name: str, arch: str, sources: object, options: object) -> tuple[bytes, str]:
        names.append(name)
        return f"{name} for {arch}, the {len(names)}th".encode(), ""

    monkeypatch.setattr(kernels, "compile_source", pretend)
    return names


@pytest.fixture
def forgetful() -> Iterator[None]:
    """Makes the code look for CuPy again, now and after the test."""
    kernels._compiler.cache_clear()
    yield
    kernels._compiler.cache_clear()


@pytest.mark.parametrize("arch", GPUS)
def test_assemble_compiles_without_a_gpu(arch: str) -> None:
    cubin = compile_kernel("assemble", arch, None)
    assert cubin.startswith(b"\x7fELF")
    assert b".text.assemble" in cubin


def test_a_second_time_it_comes_from_the_cache(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_kernel("small", "sm_90", tmp_path / "a" / "cache", folder=folder)
    monkeypatch.setattr(kernels, "compile_source", None)
    assert compile_kernel("small", "sm_90", tmp_path / "a" / "cache", folder=folder) == first
    assert [path.suffix for path in (tmp_path / "a" / "cache").iterdir()] == [".cubin"]


def test_what_is_included_is_what_is_compiled(folder: Path, tmp_path: Path) -> None:
    first = compile_kernel("small", "sm_90", tmp_path / "cache", folder=folder)
    (folder / "value.cuh").write_text("#define VALUE 8\n", encoding="utf-8")
    assert compile_kernel("small", "sm_90", tmp_path / "cache", folder=folder) != first


@pytest.mark.parametrize("changed", sorted(path.name for path in CUDA.glob("*.cu*")))
def test_a_change_of_any_source_is_a_new_entry(changed: str, compiled: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "cuda"
    shutil.copytree(CUDA, folder)

    def get() -> bytes:
        return compile_kernel("assemble", "sm_90", tmp_path / "cache", folder=folder)

    before = get()
    assert get() == before
    with (folder / changed).open("a", encoding="utf-8") as file:
        file.write("\n")
    assert get() != before
    assert len(compiled) == 2


def test_a_new_source_or_a_renamed_one_is_a_new_entry(compiled: list[str], folder: Path, tmp_path: Path) -> None:
    changes: list[Callable[[], object]] = [
        lambda: None,
        lambda: (folder / "new.cuh").touch(),
        lambda: (folder / "new.cuh").rename(folder / "newer.cuh"),
    ]
    for change in changes:
        change()
        compile_kernel("small", "sm_90", tmp_path / "cache", folder=folder)
    assert len(compiled) == len(changes)


def test_another_gpu_option_or_compiler_is_a_new_entry(
    compiled: list[str], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get(arch: str = "sm_90") -> bytes:
        return compile_kernel("small", arch, tmp_path / "cache", folder=folder)

    seen = {get(), get("sm_80")}
    monkeypatch.setattr(kernels, "OPTIONS", (*kernels.OPTIONS, "-ftz=true"))
    seen.add(get())
    monkeypatch.setattr(kernels, "_versions", lambda: "another NVRTC")
    seen.add(get())
    assert len(seen) == len(compiled) == 4


def test_the_versions_name_the_build_of_the_compiler() -> None:
    assert "Cuda compilation tools, release" in kernels._versions()


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: b"",
        lambda entry: entry[:20],
        lambda entry: entry[:-1],
        lambda entry: entry + b"\0",
        lambda entry: bytes([entry[0] ^ 1]) + entry[1:],
        lambda entry: entry[:-1] + bytes([entry[-1] ^ 128]),
    ],
    ids=["empty", "cut in the digest", "cut", "longer", "digest", "content"],
)
def test_a_damaged_entry_is_compiled_anew(
    damage: Callable[[bytes], bytes],
    compiled: list[str],
    folder: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    compile_kernel("small", "sm_90", tmp_path, folder=folder)
    (entry,) = tmp_path.glob("*.cubin")
    entry.write_bytes(damage(entry.read_bytes()))
    again = compile_kernel("small", "sm_90", tmp_path, folder=folder)
    assert again == b"small for sm_90, the 2th"
    assert "is damaged" in caplog.text
    assert compile_kernel("small", "sm_90", tmp_path, folder=folder) == again


def test_an_entry_under_another_key_is_not_taken(compiled: list[str], folder: Path, tmp_path: Path) -> None:
    compile_kernel("small", "sm_90", tmp_path, folder=folder)
    (first,) = tmp_path.glob("*.cubin")
    compile_kernel("small", "sm_80", tmp_path, folder=folder)
    (second,) = set(tmp_path.glob("*.cubin")) - {first}
    second.replace(first)
    assert compile_kernel("small", "sm_90", tmp_path, folder=folder) == b"small for sm_90, the 3th"


@pytest.mark.parametrize("place", ["a file", "an entry is a folder"])
def test_a_cache_that_cannot_be_written_costs_a_compilation_each_time(
    place: str, compiled: list[str], folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "cache"
    if place == "a file":
        cache.touch()
    else:
        compile_kernel("small", "sm_90", cache, folder=folder)
        (entry,) = cache.iterdir()
        entry.unlink()
        (entry / "inside").mkdir(parents=True)
    before = len(compiled)
    for count in (1, 2):
        assert compile_kernel("small", "sm_90", cache, folder=folder).startswith(b"small for sm_90")
        assert len(compiled) == before + count
    assert "cannot be kept" in caplog.text
    assert not list(tmp_path.rglob("*.part"))


def test_the_cache_is_bounded_and_leaves_other_files_alone(compiled: list[str], folder: Path, tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / f"old-sm_90-{number:064x}.cubin").touch()
    (tmp_path / "kernel-0123.part").touch()
    (tmp_path / "mine.cubin").touch()
    compile_kernel("small", "sm_90", tmp_path, folder=folder)
    assert (tmp_path / "mine.cubin").exists()
    assert len(list(tmp_path.glob("*-sm_90-*.cubin"))) + len(list(tmp_path.glob("*.part"))) == 64
    compile_kernel("small", "sm_90", tmp_path, folder=folder)
    assert len(compiled) == 1


def test_an_unknown_name_or_gpu_says_what_there_is(folder: Path) -> None:
    with pytest.raises(NotFound, match=r"no kernel is called 'larger' in .*; there are: small"):
        compile_kernel("larger", "sm_90", None, folder=folder)
    for arch in ("sm_91", "90", "sm_90; rm"):
        with pytest.raises(DeviceError, match=r"compiles nothing for .*, only for .*sm_90"):
            compile_kernel("small", arch, None, folder=folder)


def test_what_the_compiler_refuses_is_shown_in_part(folder: Path) -> None:
    (folder / "small.cu").write_text("__device__ int a = missing;\n" * 20, encoding="utf-8")
    with pytest.raises(DeviceError) as caught:
        compile_kernel("small", "sm_90", None, folder=folder)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("cuda/small.cu does not compile for sm_90: NVRTC_ERROR_COMPILATION")
    assert lines[1] == 'small.cu(1): error: identifier "missing" is undefined'
    assert lines[-1] == "..."
    assert len(lines) == 14


def test_nothing_is_included_from_where_the_process_runs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "value.cuh").rename(tmp_path / "value.cuh")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DeviceError, match="could not open source file"):
        compile_kernel("small", "sm_90", None, folder=folder)


def test_without_cupy_the_error_says_what_to_install(
    forgetful: None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    with pytest.raises(ConfigError, match=r"need CuPy: pip install 'emberline\[gpu13\]'.*'emberline\[gpu\]'"):
        compile_kernel("small", "sm_90", None, folder=folder)


def test_without_nvrtc_the_error_says_what_to_install(
    forgetful: None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cupy.cuda import nvrtc

    def fail() -> None:
        raise RuntimeError("no libnvrtc.so.13")

    monkeypatch.setattr(nvrtc, "getVersion", fail)
    with pytest.raises(ConfigError, match=r"no NVRTC.*pip install 'emberline\[gpu13\]'.*no libnvrtc.so.13"):
        compile_kernel("small", "sm_90", None, folder=folder)


@pytest.mark.parametrize(
    ("capability", "arch"), [((8, 0), "sm_80"), ((9, 0), "sm_90"), ((10, 0), "sm_100"), ((9, 4), "sm_90")]
)
def test_a_gpu_gets_its_own_architecture_or_the_last_before_it(capability: tuple[int, int], arch: str) -> None:
    assert gpu_arch(capability) == arch


@pytest.mark.parametrize("capability", [(3, 5), (99, 0)])
def test_a_gpu_of_another_generation_is_refused(capability: tuple[int, int]) -> None:
    with pytest.raises(DeviceError, match=r"nothing for a GPU of compute capability \d+\.\d, only for .*9\.0"):
        gpu_arch(capability)


def test_the_sources_are_within_the_package_in_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert source_folder() == CUDA
    # A folder `cuda` beside the package is NVIDIA's there.
    (tmp_path / "storage" / "cuda").mkdir(parents=True)
    (tmp_path / "cuda" / "pathfinder").mkdir(parents=True)
    monkeypatch.setattr(kernels, "__file__", str(tmp_path / "storage" / "hbm" / "kernels.py"))
    with pytest.raises(NotFound, match="install emberline anew"):
        source_folder()
    (tmp_path / "storage" / "cuda" / "a.cu").touch()
    assert source_folder() == tmp_path / "storage" / "cuda"


def test_compiling_loads_no_torch() -> None:
    code = "import sys; from storage.hbm.kernels import gpu_arch; gpu_arch((9, 0)); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"


class RecordingDriver:
    """Stands in for CuPy's binding of the driver, as far as it is used.

    launches: grid, block, shared bytes, stream, values.
    """

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []
        self.error: RuntimeError | None = None

    def launchKernel(self, function: int, *rest: int) -> None:  # noqa: N802
        if self.error is not None:
            raise self.error
        *shape, shared, stream, parameters, extra = rest
        addresses = ctypes.cast(parameters, ctypes.POINTER(ctypes.c_void_p))
        values = [ctypes.c_int64.from_address(addresses[place] or 0).value for place in range(6)]
        self.launches.append((function, tuple(shape[:3]), tuple(shape[3:]), shared, stream, extra, values))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> RecordingDriver:
    driver = RecordingDriver()
    monkeypatch.setattr(kernels, "_driver", lambda: driver)
    return driver


def launch(on: Kernels, **changes: int) -> None:
    base = 0x7F00_0000_0000
    arguments = {"staging": base, "table": base + 1, "inputs": 3, "target": base + 2, "stamp": base + 3}
    on.assemble(**(arguments | {"rows": 64, "widest": 1024, "stream": 5} | changes))


def test_a_launch_has_what_the_kernel_expects(driver: RecordingDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(Kernels, "_function", lambda self, name: loaded.append(name) or 77)
    on = Kernels(0, (9, 0), None)
    launch(on)
    launch(on, rows=4096, widest=8192)
    launch(on, rows=1, widest=1, inputs=0)
    launch(on, rows=10**6, widest=10**6)
    base = 0x7F00_0000_0000
    assert driver.launches[0] == (77, (4, 3, 1), (256, 1, 1), 0, 5, 0, [base, base + 1, 3, base + 2, base + 3, 64])
    assert [entry[1] for entry in driver.launches[1:]] == [(1024, 3, 1), (1, 1, 1), (1024, 3, 1)]
    assert loaded == ["assemble"]


def test_everything_is_loaded_once_and_called_by_name(driver: RecordingDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    def functions(self: Kernels, source: str, names: Sequence[str]) -> dict[str, int]:
        loaded.append(source)
        return {name: 100 * len(loaded) + number for number, name in enumerate(names)}

    monkeypatch.setattr(Kernels, "functions", functions)
    on = Kernels(0, (9, 0), None)
    values = [1, 2, 3, -4, 5, 2**63 - 1]
    on.call("publish_stores", (3, 1), values, 6)
    assert loaded == ["publish"]
    assert driver.launches[0] == (101, (3, 1, 1), (256, 1, 1), 0, 6, 0, values)
    on.load()
    assert loaded == ["publish", "assemble"]
    on.load_lookups()
    on.load_lookups()
    on.load()
    assert sorted(loaded) == sorted(["assemble", *(source for source in SOURCES if source != ACROSS)])
    on.load_across()
    on.load_across()
    assert sorted(loaded) == sorted(["assemble", *SOURCES])
    for source, names in SOURCES.items():
        for number, name in enumerate(names):
            on.call(name, (1, 2), values, 8)
            assert driver.launches[-1][:2] == (100 * (loaded.index(source) + 1) + number, (1, 2, 1))
    launch(on)
    assert len(loaded) == len(SOURCES) + 1
    with pytest.raises(NotFound, match="no kernel of lookups is called 'assemble'"):
        on.call("assemble", (1, 1), [], 0)


def test_threads_of_a_block_are_what_the_kernel_was_compiled_for() -> None:
    assert f"__launch_bounds__({kernel_sources.THREADS})" in (CUDA / "assemble.cu").read_text(encoding="utf-8")


def test_a_gpu_that_refuses_is_a_device_error(driver: RecordingDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Kernels, "_function", lambda self, name: 77)
    driver.error = RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered")
    with pytest.raises(DeviceError, match=r"GPU 2 did not start kernel assemble: CUDA_ERROR_ILLEGAL_ADDRESS") as caught:
        launch(Kernels(2, (9, 0), None))
    assert caught.value.__cause__ is driver.error


def test_all_kernels_are_compiled_beforehand_and_are_kept_then(
    compiled: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not is_kept("assemble", (9, 0), tmp_path)
    assert not is_kept("assemble", (9, 0), None)
    assert compile_kernels.main(["sm_80", "sm_90", "--cache", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{len(compiled)} kernels in {tmp_path}\n"
    assert sorted(compiled) == sorted(2 * ["assemble", *SOURCES])
    for name in ("assemble", *SOURCES):
        assert is_kept(name, (9, 0), tmp_path)
        # Another option is another kernel.
        assert not is_kept(name, (9, 0), tmp_path, (*OPTIONS, "-DX"))
        compile_kernel(name, "sm_90", tmp_path)
    assert len(compiled) == 2 * (1 + len(SOURCES))
    (next(tmp_path.glob("assemble-sm_90-*"))).write_bytes(b"damaged")
    assert not is_kept("assemble", (9, 0), tmp_path)


def test_an_architecture_that_there_is_not_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compile_kernels.main(["sm_1", "--cache", str(tmp_path)]) == 1
    assert "compiles nothing for 'sm_1'" in capsys.readouterr().err
