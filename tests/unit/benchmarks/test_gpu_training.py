"""The benchmark of training on a GPU, simulated: every line is there, and none of them as a result."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.gpu.training import SUITE

LINES = [
    r"training: 26 tables of 100 rows, [0-9]+ rows a batch of 64",
    *(rf"training a DLRM, d8, batch 64, {precision}: .* samples/s, the processor" for precision in ("fp32", "bf16")),
    *(
        rf"training step, batch 16, fp32: {part}: .* ms, the whole step "
        for part in ("lookup", "update", "rows to the GPU", "forward and backward", "gradients to the host")
    ),
    r"a step, batch 64, bf16: .* ms, of which lookup ",
    r"training a DLRM, d8, batch 16, bf16, compiled: .* samples/s, one by one ",
]


@pytest.mark.slow
def test_a_simulated_run_says_every_line_and_never_as_a_result(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = SUITE.main(["--simulated", "--max-seconds", "200", "--out", str(tmp_path / "bench.txt")])
    printed = capfd.readouterr().out
    assert code == 0, printed
    for line in LINES:
        assert re.search(f"^  simulated, no result: {line}", printed, re.M), line
    for name in SUITE.parts:
        assert re.search(f"^{name}: done after ", printed, re.M), name
