"""A version or delta by which the engine ends: tried once more, then refused, while the older snapshot answers."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from serving.updates.attempts import NOTE
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME, Planted


def run_until_killed(repository: str, store: str, fatal: str, notes: str) -> None:
    """Serves until what lies in the folder `fatal` is verified; notes whether the model was ready then."""
    from serving import Server, ServerConfig

    def on_step(_: str, step: str) -> None:
        if step == "verified" and f'"{fatal}"' in (Path(store) / NAME / NOTE).read_text():
            with Path(notes).open("a") as file:
                print(server.repository.is_ready(), file=file)
            os.kill(os.getpid(), signal.SIGKILL)

    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    config = ServerConfig(model_repository=Path(repository), store=Path(store), **ports)
    server = Server(config, on_step=on_step)
    with server:
        signal.pause()


@pytest.fixture(scope="module")
def processes() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "serving.server", "storage.checkpoint.graph"])
    return context


@pytest.mark.slow
@pytest.mark.parametrize("publish", [Live.version, Live.delta], ids=["version", "delta"])
def test_what_ends_the_engine_twice_is_refused_until_an_operator_loads_it(
    publish: Callable[..., Planted], tmp_path: Path, processes: multiprocessing.context.ForkServerContext
) -> None:
    live = Live(tmp_path)
    good = live.version()
    with live:
        live.start()
    fatal = publish(live, *([good] if publish is Live.delta else []))
    notes = tmp_path / "notes"
    for _ in range(2):
        arguments = (str(live.world.repository), str(tmp_path / "store"), str(fatal.path), str(notes))
        process = processes.Process(target=run_until_killed, args=arguments)
        process.start()
        process.join(120)
        assert process.exitcode == -signal.SIGKILL
    # The second time the older snapshot answers first, and goes on until the process dies.
    assert notes.read_text().split() == ["False", "True"]

    with live:
        for _ in range(2):
            live.start()
            live.until(live.refused)
            (reason,) = live.refused()
            assert "the engine ended 2 times while it took this" in reason
            assert f"`emberline load {NAME}`" in reason
            assert live.repository.is_ready()
            assert live.served() is good
            live.stop()
        live.start()
        live.repository.load(NAME)
        assert live.served() is fatal
        assert not live.refused()
    assert not (tmp_path / "store" / NAME / NOTE).exists()


def test_one_death_is_no_reason_to_refuse(tmp_path: Path, processes: multiprocessing.context.ForkServerContext) -> None:
    live = Live(tmp_path)
    only = live.version()
    arguments = (str(live.world.repository), str(tmp_path / "store"), str(only.path), str(tmp_path / "notes"))
    process = processes.Process(target=run_until_killed, args=arguments)
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    with live:
        live.start()
        assert live.served() is only
        assert not live.refused()


def test_a_process_that_is_asked_to_stop_does_not_count_as_one_that_died(tmp_path: Path) -> None:
    live = Live(tmp_path)
    live.version()
    note = tmp_path / "store" / NAME / NOTE
    seen: list[bool] = []

    def on_step(_: str, step: str) -> None:
        if step == "verified":
            seen.append(note.exists())
            live.repository.stop_loading()
            seen.append(note.exists())

    live.on_step = on_step
    with live:
        live.start()
    assert seen == [True, False]
