"""The stages of the pipeline, one after the other. Each uses only what any user has."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from emberline.cli.console import table_console
from examples.quickstart.baselines import logistic_regression, mean_rate
from examples.quickstart.judge import Comparison, compare
from examples.quickstart.newer import Array, NewerFindings, learn_newer
from examples.quickstart.report import Findings, print_table, tiers, write_report
from examples.quickstart.stages import Stages
from examples.quickstart.stream import follow_clicks
from examples.quickstart.try_it import what_to_try
from storage import PublishedVersion, open_version
from storage.errors import EmberlineError
from tests.support.server_process import ServerProcess
from tests.support.small_model import small_model, tenth_of
from tests.support.transports import ask_all, requests_of
from trainer import Trained, load_config, load_trained, train
from trainer.datasets import PARTS, write_movielens
from trainer.datasets.parts import DATASET
from trainer.metrics import auc

CONFIG = Path(__file__).parents[2] / "trainer" / "configs" / "movielens.yaml"
CACHE = Path.home() / ".cache" / "emberline"
# Features with lists of earlier items: the regression may do without them.
LISTS = frozenset({"history", "disliked"})
# Number of test rows; each is scored through every transport.
PARITY_ROWS = 10_000
TOLERANCE = 1e-6
MANY_RATINGS = 20


def walk(work: Path, *, wheel: Path | None, seconds: int, keep: bool) -> bool:
    """Runs the pipeline in `work`; returns whether everything that was to be shown was shown."""
    console = table_console()
    stages = Stages(console)
    run, repository, store = work / "run", work / "models", work / "store"
    for old in (run, repository, store):
        shutil.rmtree(old, ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    parts = {part: work / "data" / f"{part}.parquet" for part in PARTS}
    config = load_config(CONFIG)

    with stages.stage("data", "100,000 ratings of films, in order of time; a like is 4 stars or more"):
        written = write_movielens(work / "data", cache=CACHE, wheel=wheel)
        for fact in ("source", "terms"):
            stages.say(str(written.facts[fact]))
        stages.say(
            ", ".join(f"{part} {rows:,} rows" for part, rows in written.rows.items()) + f" ({DATASET} beside them)"
        )
    with stages.stage("train", f"{CONFIG.name} on the first 80%, watched on the next 10%"):
        trained_report = train(config, parts["train"], output=run, valid=parts["valid"])
        trained = load_trained(run)
        stages.say(f"{trained_report.rows_per_second:,.0f} rows a second, {trained_report.steps:,} steps")
    with stages.stage("judge", "on the last 10%, beside two baselines, 95% intervals from resampled rows"):
        comparisons, scores = _judge(trained, parts)
        for entry in comparisons:
            stages.say(
                f"{entry.rows_of}: AUC {entry.auc:.4f} against {entry.auc_baseline:.4f} of {entry.baseline}: "
                f"{entry.difference:+.4f} ({entry.low:+.4f} to {entry.high:+.4f})"
            )
    with stages.stage("publish", f"into {repository}, and once more with room for a tenth of the rows in DRAM"):
        published = trained.publish(repository)
        version = open_version(published)
        small = small_model(repository, config.model_name, published, dram_bytes=tenth_of(version))
        stages.say(f"{published}: {_size(version):,} bytes, golden requests: {version.golden().batch} rows")
        stages.say(f"{repository / small}: the same version, dram_bytes {tenth_of(version):,}")
    with stages.stage("serve", "a process of its own, on free ports"):
        server = ServerProcess(repository, store, work / "server.log")
        stages.say(f"HTTP {server.url}, gRPC {server.grpc}, log {server.log}")
    with server:
        with stages.stage(
            "predict", f"{PARITY_ROWS:,} test rows through every transport, against the trainer's scores"
        ):
            parity = _parity(server, [config.model_name, small], parts["test"], scores)
            for (model, transport), difference in parity.items():
                stages.say(f"{model:<18} {transport:<12} largest difference {difference:.2g}")
        with stages.stage("load test", f"locust, 4 users of each kind, {seconds} s each, 32 rows a request"):
            load = _load_test(server, config.model_name, parts["test"], seconds, work / "loadtest.json")
            for kind, figures in load.items():
                stages.say(
                    f"{kind:<12} {figures['requests']:,.0f} requests, {figures['failures']} failed, "
                    f"p50 {figures['p50_ms']:.2f} ms, p99 {figures['p99_ms']:.2f} ms"
                )
        where = tiers(server.metrics())
        with stages.stage("newer clicks", "the next 10%: trained on, published as a delta, served; back, and forward"):
            newer = _newer(server, stages, [config.model_name, small], work, parts)
        with stages.stage("stream", "files of clicks in a folder that is followed, a delta each second"):
            followed = follow_clicks(
                server, model=config.model_name, run=run, repository=repository, data=parts["valid"]
            )
            stages.say(
                f"{len(followed.seconds)} files of clicks, each in what is served {min(followed.seconds):.1f} to "
                f"{max(followed.seconds):.1f} s after it was written"
            )
        findings = Findings(comparisons, parity, load, where, version, trained_report, stages.seconds, newer, followed)
        print_table(console, findings)
        report = work / "report.json"
        good = write_report(report, findings, tolerance=TOLERANCE)
        console.print(f"\nAll of it: {report}")
        if keep:
            console.print("\nThe server is still there; Ctrl-C stops it. To try:\n")
            console.print(what_to_try(server, config.model_name, parts["test"], sys.executable), markup=False)
            _wait(server)
    return good


def _judge(trained: Trained, parts: dict[str, Path]) -> tuple[list[Comparison], np.ndarray[Any, Any]]:
    config = trained.config
    label = config.targets.tasks[0].label.column
    baselines = [logistic_regression(parts, config.spec, label, LISTS), mean_rate(parts, "item", label)]
    found = trained.evaluate(parts["test"])
    before = pq.read_table(parts["test"], columns=["rated_before"])["rated_before"].to_numpy()
    subsets = {
        "all test rows": np.ones(len(before), np.bool_),
        f"users with {MANY_RATINGS} or more earlier ratings": before >= MANY_RATINGS,
    }
    return compare(found.labels, found.scores, baselines, subsets), found.scores


def _parity(
    server: ServerProcess, models: list[str], data: Path, scores: np.ndarray[Any, Any]
) -> dict[tuple[str, str], float]:
    """Returns (model, transport) -> the largest difference to the trainer's scores, over all rows."""
    found: dict[tuple[str, str], float] = {}
    requests = requests_of(server.url, models[0], data, PARITY_ROWS)
    for model in models:
        for transport, served in ask_all(server.url, server.grpc, model, requests):
            found[model, transport] = float(np.abs(served.astype(np.float64) - scores[: len(served)]).max())
    return found


def _newer(
    server: ServerProcess, stages: Stages, models: list[str], work: Path, parts: dict[str, Path]
) -> NewerFindings:
    requests = requests_of(server.url, models[0], parts["test"], PARITY_ROWS)
    labels = pq.read_table(parts["test"], columns=["label"])["label"].to_numpy()[:PARITY_ROWS]

    def ask(wanted: list[str]) -> dict[tuple[str, str], Array]:
        return {
            (model, transport): scores
            for model in wanted
            for transport, scores in ask_all(server.url, server.grpc, model, requests)
        }

    found = learn_newer(
        server,
        run=work / "run",
        repository=work / "models",
        models=models,
        newer=parts["valid"],
        test=parts["test"],
        figures=work / "loadtest_newer.json",
        auc_of=lambda scores: auc(labels[: len(scores)], scores),
        ask=ask,
        say=stages.say,
    )
    stages.say(
        f"{found.train_rows:,} newer rows: a delta of {found.delta_rows:,} rows, {found.delta_bytes:,} bytes, served "
        f"{found.visible_ms:.0f} ms after it was there"
    )
    stages.say(f"AUC of what is served: {found.auc_before:.4f} before, {found.auc_after:.4f} after")
    stages.say(
        f"rolled back in {found.rollback_ms:.1f} ms (difference to the first answers {found.back:.2g}), and forward; "
        f"{found.load['requests']:,.0f} requests meanwhile, {found.load['failures']:.0f} failed"
    )
    return found


def _load_test(
    server: ServerProcess, model: str, data: Path, seconds: int, figures: Path
) -> dict[str, dict[str, float]]:
    command = [
        *(sys.executable, "-m", "loadtest", "--model", model, "--data", str(data), "--url", server.url),
        *("--grpc", server.grpc, "--seconds", str(seconds), "--users", "4", "--items", "32", "--json", str(figures)),
    ]
    figures.unlink(missing_ok=True)
    done = subprocess.run(command, capture_output=True, text=True, timeout=3 * seconds + 300, check=False)
    if not figures.is_file():
        raise EmberlineError(f"the load test failed: {done.stderr.strip() or done.stdout.strip()}")
    content: dict[str, dict[str, float]] = json.loads(figures.read_text())
    return content


def _size(version: PublishedVersion) -> int:
    return sum(entry.size for entry in version.manifest.files)


def _wait(server: ServerProcess) -> None:
    try:
        server.process.wait()
    except KeyboardInterrupt:
        print("\nstopping the server")
