"""The GPU's benchmark without a GPU: every line at toy sizes, bad flags, and what becomes of parts that fail."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.gpu import prediction_sessions, sessions
from benchmarks.gpu.prediction_assumptions import KERNELS
from benchmarks.gpu.trace import middle, parts_of, spans_of
from benchmarks.gpu.world import FULL, TOY, Sizes, World
from benchmarks.isolated_parts import LOST, Part, supervise
from benchmarks.report import Report
from benchmarks.timeline import Span, idle_share
from storage.errors import ConfigError

ROOT = Path(__file__).parents[3]

# What a run of every part prints, each once at least: the claim, and what it is compared with.
LINES = [
    *[
        f"graph, {precision}, batch {batch}, launch to result: .* eager "
        for precision in ("fp32", "tf32", "bf16")
        for batch in TOY.batches
    ],
    "graph, bf16, batch 64, launch to result: .* floor ",
    "the GPU's limits, measured here: copies within ",
    "4 sessions, fp32, batch 64, copies and graphs: .* 1 sessions ",
    "8 sessions, bf16, batch 64, copies and graphs: .* 1 sessions ",
    "4 sessions, bf16, batch 64, copies and graphs: .* the bus ",
    "4 sessions, bf16, batch 64, graphs alone: ",
    "launch to result, fp32, batch 64, one idle session: p50: .* bound ",
    "launch to result, bf16, batch 64, one idle session: p99: .* p50 ",
    "by CUDA events, tf32, batch 64, one idle session: copy in .* graph ",
    "idle gaps of the GPU, 4 sessions, bf16, batch 64: .* bound ",
    "one idle session, by the trace: copy in ",
    *[
        f"end to end, {place}, {count} sessions, bf16, batch 64: .* samples/s, (lookups|dense|bus) "
        for count in (1, 2, 4, 8)
        for place in ("rows in DRAM", "rows in HBM", "a tenth in HBM")
    ],
    "end to end, rows in DRAM, 8 sessions, bf16, batch 64, a request: p99: ",
    "end to end, rows in DRAM, 1 sessions, bf16, batch 64: bounds in samples/s: lookups .* dense .* bus ",
    "end to end, rows in HBM, 1 sessions, .* ids were looked up on the GPU, (99|100).* % of them were there",
    "end to end, a tenth in HBM, 4 sessions, .* ids were looked up on the GPU, [1-9][0-9].* % of them were there",
    "new weights, .* beside 2 sessions: call to first answer: ",
    "new weights, .* p99 of a request: .* without ",
    "new weights, .* graphs captured: 0 graphs, none 0, .* target 1: yes",
    "soak of .* device memory, last quarter: .* target 1: yes",
    "soak of .* pinned memory, last quarter: .* target 1: yes",
    "soak of .* wrong scores: 0 batches, none 0, .* target 1: yes",
    "soak of .* [1-9][0-9]* batches checked",
    "runner compile: left out, it needs a GPU",
]  # fmt: skip


@pytest.mark.slow
def test_a_simulated_run_says_every_line_and_never_as_a_result(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out, picture = tmp_path / "bench.txt", tmp_path / "trace.svg"
    code = sessions.main(
        ["--simulated", "--soak", "1", "--max-seconds", "400", "--out", str(out), "--svg", str(picture)]
    )
    printed = capfd.readouterr().out
    assert code == 0, printed
    for line in LINES:
        assert re.search(line, printed), line
    for name in sessions.PARTS:
        assert re.search(f"^{name}: done after ", printed, re.M), name
    said = [line for line in printed.splitlines() if line.startswith("  ")]
    assert said
    assert all(line.startswith("  simulated, no result: ") for line in said)
    rows = json.loads((tmp_path / "bench.txt.json").read_text())
    for row in rows[:-1]:
        assert row["claim"].startswith("simulated, no result: ")
        # Only what is counted is judged.
        assert row["target"] is None or row["unit"] in ("graphs", "MiB", "batches")
    assert rows[-1]["claim"] == "parts that failed"
    assert "simulated: no figure below is a result" in out.read_text()
    assert "simulated" in picture.read_text()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--parts", "graps"], "there is no 'graps'; there are graphs, sessions"),
        (["--soak", "0"], "--soak is 0, expected 1 or more"),
        (["--rows", "3"], "--rows is 3, expected 64 or more"),
        (["--repeats", "0"], "--repeats is 0"),
        (["--max-seconds", "-1"], "--max-seconds is -1"),
        (["--parts", "latency", "--svg", "x.svg"], "add it to --parts"),
        (["--svg", "/nowhere/x.svg"], "no folder /nowhere"),
        (["--out", "/nowhere/x.txt"], "no folder /nowhere"),
        (["--quik"], "unrecognized arguments: --quik"),
    ],
)
def test_bad_flags_are_reported(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        sessions.main(flags)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        sessions.main(["--help"])
    text = capsys.readouterr().out
    for name, part in sessions.PARTS.items():
        assert re.search(f"^  {name} +{re.escape(part.says)}", text, re.M)
    assert "python -m benchmarks.gpu.sessions --quick" in text


def test_without_a_gpu_nothing_is_measured_and_the_reason_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    from serving.gpu.gpus import find_gpus

    if not find_gpus().why_none:
        pytest.skip("there is a GPU here")
    assert sessions.main(["--quick", "--parts", "latency"]) == 1
    printed = capfd.readouterr()
    assert "no GPU can be measured: " in printed.err
    assert "--simulated" in printed.err
    assert "launch to result" not in printed.out


def run_scripts(
    scripts: dict[str, str], tmp_path: Path, *, limit_s: float = 60.0, seconds: float = 60.0
) -> tuple[list[str], Report]:
    """Runs parts a, b, ..., each a line of Python in a worker; `tell(kind, value)` writes a line."""
    parts = {name: Part("", "", limit_s, "one", name) for name in scripts}
    head = "import json, os, sys, time\nevents = open(sys.argv[1], 'a')\n"
    head += "def tell(kind, value): print(json.dumps([kind, value]), file=events, flush=True)\n"

    def command(names: Sequence[str], events: Path, left_s: float) -> list[str]:
        body = "".join(f"tell('begin', {name!r})\n{scripts[name]}\n" for name in names)
        return [sys.executable, "-c", head + body, str(events)]

    report = Report("parts", quick=True)
    failed = supervise(report, parts, list(scripts), command, tmp_path / "events", time.monotonic() + seconds)
    return failed, report


ROW = {
    "claim": "a row", "ours": 1.0, "other": 2.0, "ratio": 0.5, "target": None, "holds": None, "spread": [0.5, 0.5],
    "repeats": 1, "unit": "us", "against": "b", "dropped": 0, "disturbed": False, "note": "",
}  # fmt: skip
GOOD = f"tell('row', {ROW!r}); tell('end', ['NAME', ''])"


def good(name: str) -> str:
    return GOOD.replace("NAME", name)


def test_parts_that_end_well_have_their_rows_in_the_report(tmp_path: Path) -> None:
    failed, report = run_scripts({"a": good("a"), "b": f"tell('remark', 'x'); {good('b')}"}, tmp_path)
    assert failed == []
    assert [row.claim for row in report.rows] == ["a row", "a row", "parts that failed"]
    assert report.rows[0].spread == (0.5, 0.5)
    assert report.rows[-1].holds
    assert report.remarks == ["x"]


def test_a_part_that_fails_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    failed, report = run_scripts({"a": "tell('end', ['a', 'ValueError: seven'])", "b": good("b")}, tmp_path)
    assert failed == ["a"]
    assert report.remarks == ["part a FAILED: ValueError: seven"]
    assert [row.claim for row in report.rows] == ["a row", "parts that failed"]
    assert not report.rows[-1].holds


@pytest.mark.parametrize(
    ("death", "why"),
    [
        ("os.kill(os.getpid(), 11)", "its process ended with -11"),
        ("sys.exit(3)", "its process ended with 3"),
        ("time.sleep(600)", "not done after 1 s"),
    ],
)
def test_a_part_that_takes_its_process_along_costs_itself_alone(tmp_path: Path, death: str, why: str) -> None:
    row = f"tell('row', {ROW!r})"
    scripts = {"a": good("a"), "b": f"{row}; {death}", "c": good("c")}
    failed, report = run_scripts(scripts, tmp_path, limit_s=1.0)
    assert failed == ["b"]
    assert report.remarks == [f"part b FAILED: {why}"]
    # What it found until then counts, and nothing is measured twice.
    assert [row.claim for row in report.rows] == ["a row", "a row", "a row", "parts that failed"]


def test_a_part_that_lost_the_gpu_is_followed_by_a_new_process(tmp_path: Path) -> None:
    lost = f"tell('end', ['a', 'DeviceLost: gone']); sys.exit({LOST})"
    failed, report = run_scripts({"a": lost, "b": good("b")}, tmp_path)
    assert failed == ["a"]
    assert [row.claim for row in report.rows] == ["a row", "parts that failed"]


def test_a_worker_that_does_not_even_begin_is_not_tried_for_each_part(tmp_path: Path) -> None:
    parts = {name: Part("", "", 5.0, "one", name) for name in "ab"}
    report = Report("parts", quick=True)
    ends = time.monotonic() + 60.0
    failed = supervise(report, parts, ["a", "b"], lambda *_: [sys.executable, "-c", "1 / 0"], tmp_path / "e", ends)
    assert failed == ["a", "b"]
    assert report.remarks == ["part a, b FAILED: its process ended with 1"]


def test_what_there_is_no_time_for_is_reported(tmp_path: Path) -> None:
    failed, report = run_scripts({"a": good("a") + "; sys.exit(0)", "b": good("b")}, tmp_path, seconds=0.0)
    assert failed == []
    assert report.remarks == ["left out, for want of time: b"]


def test_a_refusal_ends_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no GPU here"):
        run_scripts({"a": "tell('refused', 'no GPU here')"}, tmp_path)


def test_the_arithmetic_of_the_sizes_is_that_of_the_module() -> None:
    from benchmarks.dlrm_towers import Towers

    for sizes in (FULL, TOY):
        module = Towers(sizes.dim, sizes.bottom, sizes.top)
        assert sizes.weights == sum(weight.numel() for weight in module.parameters())
    assert FULL.row_bytes() == 4 * (26 * 128 + 13)
    one = Sizes(16, (), (), (1,), 1, 64)
    assert one.widths == [(13, 16), (16 + 351, 1)]
    assert one.flops(2) == 2 * (2 * (13 * 16 + 367) + 2 * 27 * 27 * 16)


def test_predicted_sessions_wait_for_nothing_of_their_own() -> None:
    assert idle_share([span for span in prediction_sessions.predicted_spans() if span.row == "session 0"]) < 1e-6


@pytest.mark.slow
def test_the_predicted_kernels_are_those_of_the_graph(tmp_path: Path) -> None:
    world = World(tmp_path, FULL)
    # These move nothing; unpacking the inputs and writing the result are two more.
    free = ("aten.sym_size.int", "aten.unsqueeze.default", "aten.transpose.int", "aten.view.default")
    for precision, count in KERNELS.items():
        nodes = world.graph(precision).program.module.graph.nodes
        called = [str(node.target) for node in nodes if node.op == "call_function"]
        assert len([name for name in called if name not in free]) + 2 == count, precision


def test_a_trace_of_torchs_profiler_is_read(tmp_path: Path) -> None:
    def event(cat: str, name: str, ts: float, dur: float, stream: int = 7) -> dict[str, object]:
        return {
            "ph": "X",
            "cat": cat,
            "name": name,
            "pid": 0,
            "tid": stream,
            "ts": ts,
            "dur": dur,
            "args": {"stream": stream},
        }

    events: list[dict[str, object]] = [{"ph": "M", "name": "process_name", "pid": 0}]
    for batch in range(3):
        start = 1000.0 + 100 * batch
        events += [
            event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", start, 40.0),
            event("cuda_runtime", "cudaGraphLaunch", start, 90.0),
            event("kernel", "assemble", start + 45, 5.0),
            event("kernel", "gemm", start + 50, 30.0),
            event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", start + 80, 5.0),
        ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    spans = spans_of(path)
    assert [span.kind for span in spans[:4]] == ["copy in", "kernel", "kernel", "copy out"]
    assert spans[0] == Span("stream 7", "Memcpy HtoD (Pinned -> Device)", "copy in", 1000.0, 1040.0)
    assert parts_of(spans) == "copy in 40.0 us, kernels 35.0 us, copy out 5.0 us, gaps 5.0 us; 2 kernels"
    assert idle_share(spans) == pytest.approx((285 - 3 * 80) / 285)
    assert min(span.start for span in middle(spans)) == pytest.approx(1000 + 0.05 * 285)
    assert parts_of([]) == "no copy to the GPU was seen"
