"""Sessions of one model: dealt out in turn or by key, added and taken away while requests run."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from serving.engine.model import LoadedModel
from serving.engine.requests import InferenceResult
from storage.errors import Overloaded

MakeModel = Callable[..., LoadedModel]
IDS = np.array([1, 17, 499, 100_000])


def option(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


def requests_of(model: LoadedModel) -> list[int]:
    """Returns how many requests each session has answered."""
    return [session.statistics.requests for session in model.group.sessions if not session.is_over]


async def ask(model: LoadedModel, world: Any, **arguments: Any) -> InferenceResult:
    result = await model.infer(world.columns(IDS), len(IDS), **arguments)
    assert np.allclose(result.outputs[0], world.score(IDS), atol=1e-6)
    return result


def test_requests_are_dealt_out_in_turn(make_model: MakeModel, world: Any) -> None:
    model = make_model("instance_group { count: 4 }\n" + option("pick", "round_robin"))

    async def run() -> None:
        for _ in range(12):
            await ask(model, world)

    asyncio.run(run())
    assert requests_of(model) == [3, 3, 3, 3]
    assert model.sessions == 4


def test_requests_of_one_key_stay_with_one_session(make_model: MakeModel, world: Any) -> None:
    model = make_model("instance_group { count: 4 }\n" + option("pick", "key"))

    async def run(key: str) -> list[int]:
        before = requests_of(model)
        for _ in range(3):
            await ask(model, world, routing_key=key)
        return [after - earlier for after, earlier in zip(requests_of(model), before, strict=True)]

    places = set()
    for key in ("ann", "bob", "", "cem", "dora", "eve", "finn", "gül", "\udc80"):
        dealt = asyncio.run(run(key))
        assert sum(dealt) == 3
        if key:
            assert max(dealt) == 3
            places.add(dealt.index(3))
    assert len(places) > 1


@pytest.mark.parametrize("pick", ["least_loaded", "round_robin", "key"])
def test_no_request_is_lost_while_sessions_come_and_go(make_model: MakeModel, world: Any, pick: str) -> None:
    model = make_model("instance_group { count: 2 }\ndynamic_batching { }\n" + option("pick", pick))
    stop = threading.Event()

    async def client(number: int) -> int:
        count = 0
        while not stop.is_set():
            await ask(model, world, routing_key=f"key-{number}")
            count += 1
        return count

    async def clients() -> list[int]:
        return await asyncio.gather(*(client(number) for number in range(16)))

    answered: list[int] = []
    thread = threading.Thread(target=lambda: answered.extend(asyncio.run(clients())))
    thread.start()
    for count in (5, 1, 8, 3, 1, 4) * 3:
        model.resize(count)
        assert model.sessions == count
    stop.set()
    thread.join(20)
    assert len(answered) == 16
    assert sum(answered) > 0
    # All of them are counted, those of sessions that have left too.
    stats = model.store_stats()
    assert sum(stats.hits.values()) + stats.absent == 4 * sum(answered)
    assert model.statistics.stages["success"].count == sum(answered)
    assert model.statistics.stages["fail"].count == 0


def test_the_bound_of_the_queue_is_that_of_all_sessions_together(make_model: MakeModel) -> None:
    model = make_model(
        "instance_group { count: 3 }\ndynamic_batching { default_queue_policy { max_queue_size: 7 } }\n"
        + option("pick", "round_robin")
    )
    assert sum(queue.settings.max_size for queue in model.group._queues) == 9  # 7, rounded up for each


def test_sessions_run_on_the_processors_that_they_are_given(make_model: MakeModel, world: Any) -> None:
    cpu = max(os.sched_getaffinity(0))
    model = make_model(option("cpus", str(cpu)))
    asyncio.run(ask(model, world))
    (session,) = model.group.sessions
    assert os.sched_getaffinity(session._thread.native_id or 0) == {cpu}
    assert len(os.sched_getaffinity(0)) >= 1


def test_a_priority_reaches_the_queue(make_model: MakeModel, world: Any) -> None:
    model = make_model(
        "dynamic_batching { priority_levels: 2 default_priority_level: 2 "
        "priority_queue_policy { key: 1 value { max_queue_size: 1 } } }"
    )
    queue = model.group._queues[0]
    queue.native.pause()

    async def run() -> None:
        low = asyncio.ensure_future(ask(model, world))
        first = asyncio.ensure_future(ask(model, world, priority=1))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="queue size of 1"):
            await ask(model, world, priority=1)
        assert queue.native.levels == [0, 1]
        queue.native.resume()
        await asyncio.gather(low, first)

    asyncio.run(run())
