"""Bodies of control calls, and the threads that the calls run on."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from serving.control.bodies import (
    AllowBody,
    CanaryBody,
    ControlBody,
    LoadBody,
    PinBody,
    RollbackBody,
    UnloadBody,
)
from serving.control.calls import ControlCalls
from storage.errors import InvalidInput, NotFound, Overloaded, Unsupported


def test_bodies_have_defaults() -> None:
    assert (RollbackBody.parse({}).to, RollbackBody.parse({}).steps) == ("", 1)
    assert RollbackBody.parse({"to": "1.16"}).to == "1.16"
    assert PinBody.parse({}).to == ""
    assert CanaryBody.parse({"fraction": 1}).fraction == 1.0
    assert CanaryBody.parse({"promote": True}).promote
    assert AllowBody.parse({"version": 2, "inputs": ["age"]}).inputs == ["age"]
    assert ControlBody.parse({}) == ControlBody()


@pytest.mark.parametrize(
    ("body", "content", "field", "text"),
    [
        (RollbackBody, {"step": 2}, "step", "did you mean 'steps'"),
        (RollbackBody, {"nothing like it": 2}, "nothing like it", "expected 'to', 'steps'"),
        (RollbackBody, {"steps": 0}, "steps", "got 0"),
        (RollbackBody, {"steps": "2"}, "steps", "got '2'"),
        (RollbackBody, {"steps": True}, "steps", "got True"),
        (RollbackBody, {"to": 1.16}, "to", "got 1.16"),
        (RollbackBody, {"to": "x" * 65}, "to", "64"),
        (RollbackBody, {"to": "1.0", "steps": 1}, "to", "send one of them"),
        (ControlBody, {"to": "1.0"}, "to", "an empty object"),
        (PinBody, {"two": "1.0"}, "two", "did you mean 'to'"),
        (CanaryBody, {}, "", "expected 'fraction'"),
        (CanaryBody, {"fraction": 0}, "fraction", "got 0"),
        (CanaryBody, {"fraction": 1.5}, "fraction", "got 1.5"),
        (CanaryBody, {"fraction": float("nan")}, "fraction", "got nan"),
        (CanaryBody, {"fraction": 0.5, "stop": True}, "fraction", "expected 'fraction'"),
        (CanaryBody, {"promote": True, "to": "1.0"}, "promote", "'to' goes with 'fraction'"),
        (CanaryBody, {"promote": False}, "promote", "expected 'fraction'"),
        (AllowBody, {"inputs": ["age"]}, "version", "got nothing"),
        (AllowBody, {"version": 2, "inputs": []}, "inputs", "got []"),
        (AllowBody, {"version": 2, "inputs": [3]}, "inputs.0", "got 3"),
        (AllowBody, {"version": "2", "inputs": ["age"]}, "version", "got '2'"),
        (LoadBody, {"parameters": {"x": 1}}, "x", "a load takes none"),
        (LoadBody, {"parameters": 1}, "parameters", "got 1"),
        (UnloadBody, {"parameters": {"unload_dependents": 1}}, "unload_dependents", "true or false"),
        (UnloadBody, {"parameters": {"x": True}}, "x", "unload_dependents"),
    ],
)
def test_a_wrong_body_is_refused_by_key(
    body: type[ControlBody], content: dict[str, Any], field: str, text: str
) -> None:
    with pytest.raises(InvalidInput) as raised:
        body.parse(content)
    assert raised.value.field == field
    assert text in str(raised.value)


@pytest.mark.parametrize("key", ["config", "file:1/manifest.json"])
def test_a_load_brings_no_files(key: str) -> None:
    with pytest.raises(Unsupported, match="its folder"):
        LoadBody.parse({"parameters": {key: "x"}})


def test_a_slow_call_holds_up_neither_the_loop_nor_another_call() -> None:
    entered, go_on = threading.Event(), threading.Event()

    def slow() -> str:
        entered.set()
        assert go_on.wait(20)
        return "slow"

    async def both() -> tuple[str, str]:
        calls = ControlCalls()
        first = asyncio.ensure_future(calls.run(slow))
        while not entered.is_set():
            await asyncio.sleep(0)
        quick = await calls.run(lambda: "quick")
        assert not first.done()
        go_on.set()
        return quick, await first

    assert asyncio.run(both()) == ("quick", "slow")


def test_what_a_call_raises_reaches_its_caller() -> None:
    def fail() -> None:
        raise NotFound("no such model")

    async def run() -> None:
        await ControlCalls().run(fail)

    with pytest.raises(NotFound, match="no such model"):
        asyncio.run(run())


def test_too_many_calls_at_once_are_refused_and_the_place_of_an_ended_one_is_free() -> None:
    go_on = threading.Event()

    async def run() -> None:
        calls = ControlCalls(limit=1)
        first = asyncio.ensure_future(calls.run(lambda: go_on.wait(20)))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await calls.run(lambda: None)
        go_on.set()
        assert await first
        await calls.run(lambda: None)

    asyncio.run(run())


def test_a_caller_that_goes_away_leaves_its_call_running_to_the_end() -> None:
    go_on, ended = threading.Event(), threading.Event()

    def slow() -> None:
        assert go_on.wait(20)
        ended.set()

    async def run() -> None:
        calls = ControlCalls(limit=1)
        task = asyncio.ensure_future(calls.run(slow))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(Overloaded):  # it still counts
            await calls.run(lambda: None)
        go_on.set()
        while True:
            try:
                return await calls.run(lambda: None)
            except Overloaded:
                await asyncio.sleep(0)

    asyncio.run(run())
    assert ended.is_set()
