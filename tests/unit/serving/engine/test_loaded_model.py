from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from serving.engine.model import LoadedModel
from serving.engine.requests import InferenceResult
from serving.engine.validation import validate
from serving.model_config.options import ModelOptions
from storage.checkpoint import DenseGraph
from storage.errors import DeadlineExceeded, InvalidInput, Overloaded, Unavailable

MakeModel = Callable[..., LoadedModel]
IDS = np.array([1, 17, 499, 100_000])


def ask(model: LoadedModel, world: Any, ids: np.ndarray = IDS, **arguments: Any) -> InferenceResult:
    return asyncio.run(model.infer(world.columns(ids), len(ids), **arguments))


def scores(result: InferenceResult) -> np.ndarray:
    return result.outputs[0]


def test_an_answer_comes_from_one_snapshot_and_says_which(make_model: MakeModel, world: Any, graph: DenseGraph) -> None:
    model = make_model()
    first = ask(model, world)
    assert np.allclose(scores(first), world.score(IDS), atol=1e-6)
    assert (first.snapshot.id, first.snapshot.name, model.snapshot) == (
        world.published.snapshot,
        "3.0",
        first.snapshot.id,
    )
    after = world.snapshot(graph, 4, scale=-2.0)
    model.history.switch(after)
    second = ask(model, world)
    assert second.snapshot is after
    assert np.allclose(scores(second), world.score(IDS, -2.0), atol=1e-6)
    assert model.history.in_use() == {after}


def test_an_empty_request_names_its_snapshot_too(make_model: MakeModel, world: Any, graph: DenseGraph) -> None:
    model = make_model()
    model.history.set_canary(world.snapshot(graph, 5), 0.5)
    assert ask(model, world, IDS[:0], canary=False).snapshot.name == "3.0"
    result = ask(model, world, IDS[:0], canary=True)
    assert (result.snapshot.name, result.outputs[0].shape) == ("3.5", (0, 1))


def test_the_canary_arm_answers_and_counts_apart(make_model: MakeModel, world: Any, graph: DenseGraph) -> None:
    model = make_model("dynamic_batching { }")
    assert not model.takes_canary("anyone")
    canary = world.snapshot(graph, 1, scale=3.0)
    model.history.set_canary(canary, 0.3)
    keys = [f"user-{number}" for number in range(200)]
    sides = [model.takes_canary(key) for key in keys]
    assert sides == [model.takes_canary(key) for key in keys]
    assert 30 < sum(sides) < 90

    async def everyone() -> list[InferenceResult]:
        return await asyncio.gather(*(model.infer(world.columns(IDS), len(IDS), canary=side) for side in sides))

    for side, result in zip(sides, asyncio.run(everyone()), strict=True):
        assert (result.snapshot is canary) == side
        assert np.allclose(scores(result), world.score(IDS, 3.0 if side else 1.0), atol=1e-6)
    counted = {name: arm.stages["success"].count for name, arm in model.arms.items()}
    assert counted == {"main": 200 - sum(sides), "canary": sum(sides)}
    assert model.canary_statistics.inference_count == 4 * sum(sides)
    model.history.set_canary(None)
    assert not any(model.takes_canary(key) for key in keys)
    assert ask(model, world, canary=True).snapshot is model.history.current


def test_an_answer_at_least_as_new_as_asked_for(make_model: MakeModel, world: Any, graph: DenseGraph) -> None:
    model = make_model()
    after = world.snapshot(graph, 2, scale=2.0)
    threading.Timer(0.02, model.history.switch, [after]).start()
    result = ask(model, world, min_snapshot=after.id)
    assert result.snapshot is after
    assert ask(model, world, min_snapshot="3.2").snapshot is after
    assert model.statistics.stages["success"].count == 2


def test_the_wait_for_a_snapshot_ends_in_time(make_model: MakeModel, world: Any) -> None:
    model = make_model('parameters { key: "min_snapshot_timeout_ms" value { string_value: "20" } }')
    with pytest.raises(Unavailable, match=r"3\.9 did not come .* serves 3\.0"):
        ask(model, world, min_snapshot="3.9")
    with pytest.raises(DeadlineExceeded):
        ask(model, world, min_snapshot="3.9", timeout_us=1)
    model.history.refuse("3.9", "held by a rollback")
    with pytest.raises(Unavailable, match="held by a rollback"):
        ask(model, world, min_snapshot="3.9")
    with pytest.raises(InvalidInput, match="min_snapshot"):
        ask(model, world, min_snapshot="latest")
    assert model.statistics.stages["fail"].count == 4
    assert model.statistics.rejected == 0


def test_a_rollback_between_wait_and_batch_is_waited_out(
    make_model: MakeModel, world: Any, graph: DenseGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model()
    old, new = model.history.current, world.snapshot(graph, 1)
    model.history.switch(new)
    acquire = model.history.acquire
    pinned: list[Any] = []

    def rolled_back_first(canary: bool = False) -> Any:
        if not pinned:
            model.history.switch(old)
            threading.Timer(0.01, model.history.switch, [new]).start()
        pinned.append(acquire(canary))
        return pinned[-1]

    monkeypatch.setattr(model.history, "acquire", rolled_back_first)
    assert ask(model, world, min_snapshot="3.1").snapshot is new
    assert pinned == [old, new]


def test_a_replaced_version_hands_its_late_requests_on(make_model: MakeModel, world: Any, graph: DenseGraph) -> None:
    old = make_model()
    new = make_model(first=world.snapshot(graph, 7, scale=5.0))
    waiting: list[InferenceResult] = []

    async def run() -> None:
        late = asyncio.ensure_future(old.infer(world.columns(IDS), 4, min_snapshot="3.7"))
        await asyncio.sleep(0)
        old.hand_over(new)
        waiting.append(await late)

    asyncio.run(run())
    assert waiting[0].snapshot.sequence == 7
    assert ask(old, world).snapshot.sequence == 0  # it still works off what comes
    assert old.close(10.0)
    assert np.allclose(scores(ask(old, world)), world.score(IDS, 5.0), atol=1e-6)
    assert new.statistics.stages["success"].count == 2
    assert old.statistics.stages["fail"].count == 0
    # It is the same version, with another store: who asks for version 3 alone is answered too.
    assert np.allclose(scores(ask(old, world, follow=False)), world.score(IDS, 5.0), atol=1e-6)


def test_what_was_admitted_is_answered_as_long_as_it_would_be_asked_still(
    make_model: MakeModel, world: Any, graph: DenseGraph
) -> None:
    old, new = make_model(), make_model()
    assert [old.answers(version) for version in ("", "3")] == [True, True]
    old.serve(old.history.current, (), by_default=False)  # one more version, for who names it
    assert [old.answers(version) for version in ("", "3")] == [False, True]
    old.stand_by(old.history.current, (), new)
    assert [old.answers(version) for version in ("", "3")] == [False, False]
    assert ask(old, world).snapshot is old.history.current  # what comes all the same is worked off
    canary = world.snapshot(graph, 7, scale=5.0)
    old.serve(old.history.current, (), (canary, (), 1.0), by_default=True)
    assert [old.answers(version) for version in ("", "3")] == [True, True]
    assert ask(old, world).snapshot is canary
    old.serve(canary, ("3.0",), by_default=True)
    assert old.history.canary is None
    assert ask(old, world, min_snapshot="3.0").snapshot is canary
    assert old.close(10.0)
    assert not old.answers("")


def test_who_asks_for_one_version_alone_is_not_answered_by_the_next(make_model: MakeModel, world: Any) -> None:
    old, new = make_model(), make_model()
    new.version = "4"
    old.hand_over(new)
    assert old.close(10.0)
    with pytest.raises(Unavailable, match="version 3 is shutting down"):
        ask(old, world, follow=False)
    assert np.allclose(scores(ask(old, world)), world.score(IDS), atol=1e-6)


def test_what_a_closing_version_does_not_manage_goes_to_its_successor(
    make_model: MakeModel, world: Any, graph: DenseGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = make_model()
    new = make_model(first=world.snapshot(graph, 7, scale=5.0))
    at_work, go_on = threading.Event(), threading.Event()
    acquire = old.history.acquire

    def held_up(canary: bool = False) -> Any:
        at_work.set()
        assert go_on.wait(10)
        return acquire(canary)

    monkeypatch.setattr(old.history, "acquire", held_up)

    async def run() -> list[InferenceResult]:
        asked = [asyncio.ensure_future(old.infer(world.columns(IDS), 4)) for _ in range(3)]
        await asyncio.to_thread(at_work.wait, 10)
        old.hand_over(new)
        closing = asyncio.ensure_future(asyncio.to_thread(old.close, 0.0))
        late = await asyncio.gather(*asked[1:])
        go_on.set()
        await closing
        return [await asked[0], *late]

    assert [result.snapshot.sequence for result in asyncio.run(run())] == [0, 7, 7]
    assert old.statistics.stages["fail"].count == 0


def test_a_successor_with_another_signature_is_not_asked(make_model: MakeModel, world: Any) -> None:
    old, new = make_model(), make_model("max_batch_size: 2")
    old.hand_over(new)
    old.close(10.0)
    assert ask(old, world, IDS[:2]).snapshot is new.history.current
    with pytest.raises(Unavailable, match="another signature"):
        ask(old, world)


def test_a_closed_model_without_successor_says_so_to_all(make_model: MakeModel, world: Any) -> None:
    model = make_model()

    async def run() -> None:
        waiting = asyncio.ensure_future(model.infer(world.columns(IDS), 4, min_snapshot="3.1"))
        await asyncio.sleep(0)
        assert model.close(10.0)
        await waiting

    for work in (run, lambda: model.infer(world.columns(IDS), 4)):
        with pytest.raises(Unavailable, match="shutting down"):
            asyncio.run(as_coroutine(work()))
    assert model.statistics.rejected == 2


async def as_coroutine(work: Awaitable[Any]) -> Any:
    return await work


def test_requests_that_wait_for_a_snapshot_are_bounded_like_the_queue(make_model: MakeModel, world: Any) -> None:
    model = make_model("dynamic_batching { default_queue_policy { max_queue_size: 1 } }")

    async def run() -> None:
        waiting = asyncio.ensure_future(model.infer(world.columns(IDS), 4, min_snapshot="3.1"))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await model.infer(world.columns(IDS), 4, min_snapshot="3.1")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(run())
    assert model.statistics.rejected == 1


def test_requests_that_were_answered_are_remembered_for_the_guard(make_model: MakeModel, world: Any) -> None:
    async def run(model: LoadedModel, item: str) -> None:
        columns = world.columns(IDS)
        await model.infer({item: columns["item"]}, 4)
        await asyncio.sleep(0)

    model = make_model()
    with pytest.raises(InvalidInput):
        asyncio.run(run(model, "itme"))
    assert model.recent.requests() == []
    asyncio.run(run(model, "item"))
    (kept,) = model.recent.requests()
    assert kept.columns["item"].values.tolist() == IDS.tolist()
    assert kept.features is not None
    assert kept.features_of(model.parts.engine).ids["item"].values.tolist() == IDS.tolist()
    off = make_model('parameters { key: "live_guard" value { string_value: "false" } }')
    asyncio.run(run(off, "item"))
    assert off.recent.requests() == []


def test_a_replay_is_not_counted_as_traffic(make_model: MakeModel, world: Any) -> None:
    model = make_model()
    validate(model.parts, None, model.history.current, world.golden(), None, options=ModelOptions())
    assert sum(model.store_stats().hits.values()) + model.store_stats().absent == 0
    ask(model, world)
    stats = model.store_stats()
    assert (stats.hits["dram"], stats.absent) == (3, 1)
    assert stats.rows["dram"] == 500


def test_no_batch_mixes_snapshots_under_a_storm_of_switches(
    make_model: MakeModel, world: Any, graph: DenseGraph
) -> None:
    model = make_model("instance_group { count: 3 } dynamic_batching { }")
    shots = [world.snapshot(graph, number, scale=float(number)) for number in range(1, 9)]
    stop = threading.Event()

    def storm() -> None:
        while not stop.is_set():
            for number, shot in enumerate(shots):
                model.history.switch(shot)
                model.history.set_canary(shots[number - 3] if number % 2 else None, 0.5)

    thread = threading.Thread(target=storm)
    thread.start()
    seen: set[str] = set()
    wrong: list[str] = []

    async def client(number: int) -> None:
        rng = np.random.default_rng(number)
        for _ in range(60):
            ids = rng.integers(0, 520, int(rng.integers(1, 9)))
            result = await model.infer(world.columns(ids), len(ids), canary=bool(number % 2))
            seen.add(result.snapshot.name)
            if not np.allclose(scores(result), world.score(ids, float(result.snapshot.sequence or 1)), atol=2e-6):
                wrong.append(result.snapshot.name)

    async def run() -> None:
        await asyncio.gather(*(client(number) for number in range(16)))

    try:
        asyncio.run(run())
    finally:
        stop.set()
        thread.join(10)
    assert wrong == []
    assert len(seen) > 3
    model.history.set_canary(None)
    assert model.history.in_use() == {model.history.current}
    assert sum(arm.stages["success"].count for arm in model.arms.values()) == 16 * 60
