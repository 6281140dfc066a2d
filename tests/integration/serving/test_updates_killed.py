"""kill -9 right after every named step of an update: the server comes back at exactly one snapshot and goes on."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from serving.updates.steps import STEPS
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME

DELTAS = 6
# In which round of a step the process dies: in the middle of the chain, and before its last merge.
ROUND = 3


def run_until_killed(repository: str, store: str, fatal: str, notes: str) -> None:
    """Serves until the step `fatal` was done for the ROUND-th time. Notes every step in a file, as it is done."""
    from serving import Server, ServerConfig

    rounds = 0
    file = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def on_step(_: str, step: str) -> None:
        nonlocal rounds
        os.write(file, f"{step}\n".encode())
        rounds += step == fatal
        if rounds == ROUND and step == fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    config = ServerConfig(model_repository=Path(repository), store=Path(store), **ports)
    with Server(config, on_step=on_step):
        signal.pause()


@pytest.fixture(scope="module")
def processes() -> multiprocessing.context.ForkServerContext:
    # torch is imported once, and every process that dies is a fork of that.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "serving.server", "storage.checkpoint.graph"])
    return context


@pytest.mark.slow
@pytest.mark.parametrize("fatal", STEPS)
def test_killed_after_a_step_it_comes_back_at_one_snapshot_and_goes_on(
    fatal: str, tmp_path: Path, processes: multiprocessing.context.ForkServerContext
) -> None:
    live = Live(tmp_path, retain_snapshots=2)
    start = live.version()
    chain = [start, *live.chain(start, DELTAS)]
    notes = tmp_path / "notes"
    arguments = (str(live.world.repository), str(tmp_path / "store"), fatal, str(notes))
    process = processes.Process(target=run_until_killed, args=arguments)
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    steps = notes.read_text().split()
    assert steps.count(fatal) == ROUND

    # Without the deltas in the repository, what is served is what the dead server had made durable, nothing newer.
    hidden = start.path.with_name(".deltas")
    (start.path / "deltas").rename(hidden)
    with live:
        live.start()
        recorded = steps.count("recorded")
        assert live.served() is chain[recorded - 1]
        assert recorded - steps.count("switched") in (0, 1)
        assert live.repository.update_counters(NAME).versions_loaded == 0
        hidden.rename(start.path / "deltas")
        live.reaches(chain[-1])
        live.until(lambda: live.states() == {"1.4": "base", "1.5": "retained", "1.6": "served"})
        live.reaches(live.delta(chain[-1]))
        kept = tmp_path / "store" / NAME / "deltas"
        live.until(
            lambda: {path.name for path in kept.iterdir()} == {each["id"] for each in live.report()["snapshots"]}
        )
