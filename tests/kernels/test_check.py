"""Tests that `make cuda-check` accepts good kernels and reports what is wrong with the others."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.kernels import check as checking
from tests.kernels.check import Report, Usage, check, read_usage
from tests.kernels.kept import KeptLogs

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[dev]'")

NVCC = shutil.which("nvcc")
COMPILERS = [
    pytest.param(None, id="NVRTC"),
    pytest.param(NVCC, id="nvcc", marks=pytest.mark.skipif(NVCC is None, reason="no nvcc on this machine")),
]
GOOD = """// budget: good 24 registers
extern "C" __global__ void good(int* out) { *out = 1; }
"""
# Two blocks of 1024 threads leave 32 registers to a thread that needs 80 and more.
SPILLING = """// budget: spilling 64 registers
extern "C" __global__ void __launch_bounds__(1024, 2) spilling(const int* a, int* b, int n) {
  int v[80];
#pragma unroll
  for (int i = 0; i < 80; ++i) v[i] = a[i * n + threadIdx.x];
  for (int r = 0; r < n; ++r) {
#pragma unroll
    for (int i = 0; i < 80; ++i) v[i] = v[i] * v[(i * 7 + 3) % 80] + v[(i + 1) % 80];
  }
#pragma unroll
  for (int i = 0; i < 80; ++i) b[i * n + threadIdx.x] = v[i];
}
"""


def checked(folder: Path, nvcc: str | None, **sources: str) -> Report:
    for name, text in sources.items():
        (folder / f"{name}.cu").write_text(text, encoding="utf-8")
    return check(folder, ["sm_90"], nvcc)


@pytest.mark.parametrize("nvcc", COMPILERS)
def test_a_good_kernel_passes(nvcc: str | None, tmp_path: Path) -> None:
    report = checked(tmp_path, nvcc, good=GOOD)
    assert report.problems == []
    assert [row[:3] for row in report.rows] == [("good", c, "sm_90") for c in ("NVRTC", "nvcc")[: 1 + bool(nvcc)]]
    assert report.notes == ([] if nvcc else ["nvcc is not on PATH: only NVRTC was checked"])


@pytest.mark.slow
@pytest.mark.parametrize("nvcc", COMPILERS)
def test_what_is_wrong_is_refused_by_each_compiler(nvcc: str | None, tmp_path: Path) -> None:
    report = checked(
        tmp_path,
        nvcc,
        spilling=SPILLING,
        greedy=SPILLING.replace("(1024, 2)", "(256)").replace("spilling", "greedy"),
        unused=GOOD.replace("good", "unused").replace("{ ", "{ int nothing = 3; "),
        broken=GOOD.replace("= 1", "= one"),
        unlimited="".join(GOOD.replace("good", "unlimited").splitlines(keepends=True)[1:]),
        renamed=GOOD.replace("void good", "void better"),
    )
    text = "\n".join(report.problems)
    for compiler in ("NVRTC", "nvcc")[: 1 + bool(nvcc)]:
        where = f"cu, {compiler}, sm_90: "
        assert f"spilling.{where}spilling spills " in text
        assert f"greedy.{where}greedy takes " in text
        # nvcc treats a warning as an error.
        assert f"unused.{where}{'warnings' if compiler == 'NVRTC' else 'does not compile'}" in text
        assert f"broken.{where}" in text
        assert f"unlimited.{where}unlimited has no budget: add a line '// budget: unlimited " in text
        assert f"renamed.{where}better has no budget" in text
    assert 'identifier "one" is undefined' in text
    assert '"nothing" was declared but never referenced' in text
    assert "renamed.cu: a budget for good, which is no kernel there" in text


def test_a_folder_without_kernels_is_refused(tmp_path: Path) -> None:
    assert checked(tmp_path, None).problems == [f"no .cu file in {tmp_path}"]


def test_a_log_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "compile_source", lambda *_: (b"", "all well"))
    assert "the log names no kernel" in checked(tmp_path, None, good=GOOD).problems[0]


def test_a_function_that_is_not_inlined_counts_for_its_kernel() -> None:
    log = """ptxas info    : Compiling entry function 'outer' for 'sm_90'
ptxas info    : Function properties for outer
    160 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 64 registers, used 0 barriers, 160 bytes cumulative stack size
ptxas info    : Function properties for _Z6helperPKii
    0 bytes stack frame, 320 bytes spill stores, 328 bytes spill loads
"""
    assert read_usage(log) == [Usage("outer", 64, 160, 648)]


def test_the_command_prints_a_table_and_what_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "good.cu").write_text(GOOD, encoding="utf-8")
    command = ["--folder", str(tmp_path), "--gpus", "sm_80,sm_100", "--kept", str(tmp_path / "kept")]
    assert checking.main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["kernel", "compiler", "gpu", "registers", "budget", "spilled", "stack"]
    assert [line.split()[:3] for line in lines[1:3]] == [["good", "NVRTC", "sm_80"], ["good", "NVRTC", "sm_100"]]
    assert lines[3:5] == ["note: nvcc is not on PATH: only NVRTC was checked", "compiled: 2; kept from before: 0"]
    (tmp_path / "good.cu").write_text(GOOD.replace("24", "2"), encoding="utf-8")
    assert checking.main(command) == 1
    assert "refused: good.cu, NVRTC, sm_80: good takes " in capsys.readouterr().out


def test_only_what_changed_is_compiled_again(tmp_path: Path) -> None:
    kept = KeptLogs(tmp_path / "kept")
    header = tmp_path / "shared.cuh"
    header.write_text("// nothing\n", encoding="utf-8")
    other = GOOD.replace("good", "other")
    for name, text in (("good", GOOD), ("other", other)):
        (tmp_path / f"{name}.cu").write_text(text, encoding="utf-8")
    first = check(tmp_path, ["sm_90"], None, kept)
    assert (first.problems, kept.compiled) == ([], 2)
    assert check(tmp_path, ["sm_90"], None, kept).rows == first.rows
    assert kept.compiled == 2
    # A budget is read anew even when the log is kept: it is part of the source.
    (tmp_path / "other.cu").write_text(other.replace("24", "2"), encoding="utf-8")
    assert "over its budget of 2" in check(tmp_path, ["sm_90"], None, kept).problems[0]
    assert kept.compiled == 3
    header.write_text("// something\n", encoding="utf-8")
    check(tmp_path, ["sm_90"], None, kept)
    assert kept.compiled == 5
    check(tmp_path, ["sm_80"], None, kept)
    assert kept.compiled == 7


def test_what_does_not_compile_is_compiled_again_and_what_nobody_asks_for_goes(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    (tmp_path / "good.cu").write_text(GOOD, encoding="utf-8")
    (tmp_path / "broken.cu").write_text(GOOD.replace("= 1", "= one").replace("good", "broken"), encoding="utf-8")
    for _ in range(2):
        assert "broken.cu, NVRTC, sm_90" in check(tmp_path, ["sm_90"], None, KeptLogs(folder)).problems[0]
        assert len(list(folder.iterdir())) == 1
    (tmp_path / "good.cu").write_text(GOOD + "// another\n", encoding="utf-8")
    kept = KeptLogs(folder)
    check(tmp_path, ["sm_90"], None, kept)
    assert len(list(folder.iterdir())) == 2
    kept.prune()
    assert len(list(folder.iterdir())) == 1
