"""A program with the events that it needs computes on the simulated GPU what it says; without one of them it fails."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulated_gpu import RaceError, SimulatedDriver, SimulatedGpus
from tests.support.examples import examples

STREAMS, BUFFERS, EVENTS, SIZE = 3, 2, 3, 24
_MODULUS = 251  # so that no result looks like poison
Range = tuple[str, int, int, int]  # kind of the buffer, its number, begin, end


@dataclass(frozen=True)
class Act:
    """One step of a program.

    kind: "in", "out", "mix", "launch", "read", "write"; or "record", "wait", "sync".
    first, second: places in the buffers.
    stream: the stream that the act is put on, also for "record" and "wait".
    """

    kind: str
    stream: int = 0
    target: int = 0
    source: int = 0
    first: int = 0
    second: int = 0
    size: int = 1
    value: int = 0
    event: int = 0

    def steps(self, graph: list[Act]) -> list[Act]:
        """Returns the steps that run on the device."""
        return graph if self.kind == "launch" else [self] if self.kind in ("in", "out", "mix") else []

    def reads(self) -> list[Range]:
        """Returns the ranges that one step, or the host, reads."""
        first = (self.first, self.first + self.size)
        kind = {"in": "pinned", "read": "pinned", "out": "device", "mix": "device"}.get(self.kind)
        if kind is None:
            return []
        also = [("device", self.target, self.second, self.second + self.size)] if self.kind == "mix" else []
        return [(kind, self.source, *first), *also]

    def writes(self) -> list[Range]:
        """Returns the ranges that one step, or the host, writes."""
        kind = {"in": "device", "mix": "device", "out": "pinned", "write": "pinned"}.get(self.kind)
        return [] if kind is None else [(kind, self.target, self.second, self.second + self.size)]


places = st.integers(0, SIZE - 8)
buffers, streams = st.integers(0, BUFFERS - 1), st.integers(0, STREAMS - 1)


def acts(*kinds: str) -> st.SearchStrategy[Act]:
    return st.builds(
        Act, st.sampled_from(kinds), streams, buffers, buffers, places, places, st.integers(1, 8), st.integers(1, 50)
    )


programs = st.lists(acts("in", "out", "mix", "mix", "launch", "read", "write"), min_size=4, max_size=25)
graphs = st.lists(acts("in", "out", "mix"), min_size=1, max_size=3)


def meet(one: list[Range], other: list[Range]) -> bool:
    return any(a[:2] == b[:2] and a[2] < b[3] and b[2] < a[3] for a in one for b in other)


class Order:
    """Tracks which acts come before which others, as bit sets.

    A bit is the place of an act among those that were put on the device.
    """

    def __init__(self, graph: list[Act]) -> None:
        self.graph = graph
        self.streams = [0] * STREAMS
        self.events = [0] * EVENTS
        self.host = 0
        self.put: list[Act] = []

    def unordered(self, act: Act) -> list[int]:
        """Returns earlier acts on the device that this one conflicts with, and that do not come before it."""
        before = self.host
        if act.kind not in ("read", "write"):
            before |= self.streams[act.stream]
        mine = act.steps(self.graph) or [act]
        found = []
        for number, earlier in enumerate(self.put):
            if before >> number & 1:
                continue
            theirs = earlier.steps(self.graph)
            both_graphs = act.kind == earlier.kind == "launch"
            if both_graphs or any(
                meet(a.writes(), b.reads() + b.writes()) or meet(b.writes(), a.reads()) for a in mine for b in theirs
            ):
                found.append(number)
        return found

    def do(self, act: Act) -> None:
        """Records that an act happens."""
        if act.kind == "record":
            self.events[act.event] = self.streams[act.stream] | self.host
        elif act.kind == "wait":
            self.streams[act.stream] |= self.events[act.event]
        elif act.kind == "sync":
            self.host |= self.events[act.event]
        elif act.steps(self.graph):
            self.streams[act.stream] |= self.host | 1 << len(self.put)
            self.put.append(act)


def with_events(program: list[Act], graph: list[Act]) -> list[Act]:
    """Returns the program with the events that it needs, and hardly more."""
    order = Order(graph)
    whole: list[Act] = []
    event = 0

    def do(act: Act) -> None:
        order.do(act)
        whole.append(act)

    for act in program:
        while unordered := order.unordered(act):
            event = (event + 1) % EVENTS
            do(Act("record", order.put[unordered[-1]].stream, event=event))
            do(Act("sync" if act.kind in ("read", "write") else "wait", act.stream, event=event))
        do(act)
    return whole


def first_race(program: list[Act], graph: list[Act]) -> int | None:
    """Returns the place of the first act that does not come after everything it needs; None without one."""
    order = Order(graph)
    for place, act in enumerate(program):
        if act.kind not in ("record", "wait", "sync") and order.unordered(act):
            return place
        order.do(act)
    return None


def mixed(target: torch.Tensor, one: torch.Tensor, value: int) -> None:
    target.copy_(((target.to(torch.int32) * 3 + one + value) % _MODULUS).to(torch.uint8))


def written(before: np.ndarray, value: int) -> np.ndarray:
    """Returns bytes that all differ from those before."""
    return ((before.astype(np.int64) + value) % _MODULUS).astype(np.uint8)


class Reference:
    """Runs a program one act after the other."""

    def __init__(self, graph: list[Act]) -> None:
        self.graph = graph
        self.memory = {
            (kind, number): np.zeros(SIZE, np.uint8) for kind in ("pinned", "device") for number in range(BUFFERS)
        }

    def part(self, place: Range) -> np.ndarray:
        return self.memory[place[:2]][place[2] : place[3]]

    def do(self, act: Act) -> None:
        for step in act.steps(self.graph):
            target, source = self.part(step.writes()[0]), self.part(step.reads()[0])
            if step.kind == "mix":
                mixed(torch.from_numpy(target), torch.from_numpy(source.copy()), step.value)
            else:
                target[:] = source.copy()
        if act.kind == "write":
            part = self.part(act.writes()[0])
            part[:] = written(part, act.value)


class Simulation:
    """Runs a program on the simulated GPU."""

    def __init__(self, graph: list[Act], schedule: str, seed: int) -> None:
        self.driver = driver = SimulatedGpus(schedule=schedule, seed=seed, strict=True).driver(0)
        driver.enter_thread()
        self.streams = [driver.new_stream(str(number)) for number in range(STREAMS)]
        self.events = [driver.new_event() for _ in range(EVENTS)]
        for event in self.events:
            driver.record(event, self.streams[0])
        self.memory = {
            (kind, number): getattr(driver, kind)(SIZE) for kind in ("pinned", "device") for number in range(BUFFERS)
        }
        self.graph = driver.capture(
            lambda: [self.step(act, self.streams[0]) for act in graph], driver.new_pool(), self.streams[0], name="graph"
        )

    def part(self, place: Range) -> torch.Tensor:
        return self.memory[place[:2]][place[2] : place[3]]

    def step(self, act: Act, stream: Any) -> None:
        target, source = self.part(act.writes()[0]), self.part(act.reads()[0])
        if act.kind == "mix":
            work = partial(mixed, target, source, act.value)
            self.driver.compute(work, stream, reads=[source, target], writes=[target])
        else:
            self.driver.copy(target, source, stream)

    def do(self, act: Act) -> np.ndarray | None:
        """Performs an act; returns what the host reads."""
        driver, stream = self.driver, self.streams[act.stream]
        if act.kind == "record":
            driver.record(self.events[act.event], stream)
        elif act.kind == "wait":
            driver.wait(stream, self.events[act.event])
        elif act.kind == "sync":
            driver.synchronize(self.events[act.event])
        elif act.kind == "launch":
            driver.launch(self.graph, stream)
        elif act.kind == "write":
            part = self.part(act.writes()[0]).numpy()
            part[:] = written(part, act.value)
        elif act.kind == "read":
            return self.part(act.reads()[0]).numpy().copy()
        else:
            self.step(act, stream)
        return None


schedules = st.sampled_from([("eager", 0), ("lazy", 0), ("random", 0)])


@settings(max_examples=examples(150))
@given(programs, graphs, schedules, st.integers(0, 1000))
def test_a_program_with_its_events_is_right(
    program: list[Act], graph: list[Act], schedule: tuple[str, int], seed: int
) -> None:
    whole = with_events(program, graph)
    reference, simulation = Reference(graph), Simulation(graph, schedule[0], seed)
    for act in whole:
        reference.do(act)
        read = simulation.do(act)
        if read is not None:
            assert np.array_equal(read, reference.part(act.reads()[0]))
    simulation.driver.finish()
    for place, expected in reference.memory.items():
        assert np.array_equal(simulation.memory[place].numpy(), expected)


@settings(max_examples=examples(250))
@given(programs, graphs, schedules, st.integers(0, 1000), st.integers(0, 1000))
def test_a_program_without_one_of_its_events_fails_where_it_is_needed(
    program: list[Act], graph: list[Act], schedule: tuple[str, int], seed: int, left_out: int
) -> None:
    whole = with_events(program, graph)
    waits = [place for place, act in enumerate(whole) if act.kind in ("wait", "sync")]
    if waits:
        del whole[waits[left_out % len(waits)]]
    place = first_race(whole, graph)
    reference, simulation = Reference(graph), Simulation(graph, schedule[0], seed)
    for number, act in enumerate(whole):
        if number == place:
            check_race(whole[number:], reference, simulation)
            return
        reference.do(act)
        read = simulation.do(act)
        assert read is None or np.array_equal(read, reference.part(act.reads()[0]))
    simulation.driver.finish()


def check_race(rest: list[Act], reference: Reference, simulation: Simulation) -> None:
    """Asserts that the simulation reports the first act of the rest as a race."""
    driver, act = simulation.driver, rest[0]
    if act.kind == "read":
        read = simulation.do(act)
        assert read is not None
        assert 0xFF in read
    elif act.kind == "write":
        simulation.do(act)
        with pytest.raises(RaceError, match="the host wrote"):
            driver.finish()
    else:
        with pytest.raises(RaceError, match="nothing says that it is complete"):
            simulation.do(act)


# Threads.


class Session:
    """A thread with its own stream and memory, as a session of a server has them; weights are shared."""

    def __init__(self, driver: SimulatedDriver, weight_slots: WeightSlots, number: int) -> None:
        self.driver = driver
        self.weight_slots = weight_slots
        self.number = number
        self.stream, self.done = driver.new_stream(f"session {number}"), driver.new_event()
        self.host_in, self.host_out = driver.pinned(64), driver.pinned(64)
        self.inside, self.result = driver.device(64), driver.device(64)
        pool = driver.new_pool()
        self.graphs = [
            driver.capture(partial(self.put, weight_slot), pool, self.stream, name=f"weight slot {place}")
            for place, weight_slot in enumerate(weight_slots.weight_slots)
        ]

    def put(self, weight_slot: torch.Tensor) -> None:
        inside, result = self.inside, self.result
        self.driver.copy(inside, self.host_in, self.stream)
        self.driver.compute(
            lambda: result.copy_(inside + weight_slot), self.stream, reads=[inside, weight_slot], writes=[result]
        )
        self.driver.copy(self.host_out, result, self.stream)

    def run(self, batches: int) -> None:
        self.driver.enter_thread()
        for batch in range(batches):
            place, weight = self.weight_slots.pin()
            try:
                self.host_in.fill_((batch + self.number) % 50)
                self.driver.wait(self.stream, self.weight_slots.ready[place])
                self.driver.launch(self.graphs[place], self.stream)
                self.driver.record(self.done, self.stream)
                self.driver.synchronize(self.done)
                assert (self.host_out == (batch + self.number) % 50 + weight).all()
            finally:
                self.weight_slots.unpin(place)


class WeightSlots:
    """Two slots of weights.

    A slot is replaced only while no thread has pinned it; host threads agree on that by a lock.
    """

    def __init__(self, driver: SimulatedDriver) -> None:
        self.driver = driver
        self.stream = driver.new_stream("uploads")
        self.host = driver.pinned(64)
        self.weight_slots = [driver.device(64) for _ in range(2)]
        self.ready = [driver.new_event() for _ in range(2)]
        self.changed = threading.Condition()
        self.pins = [0, 0]
        self.serving = 0
        self.weight = 0
        self.upload(0, 0)

    def pin(self) -> tuple[int, int]:
        with self.changed:
            self.pins[self.serving] += 1
            return self.serving, self.weight

    def unpin(self, place: int) -> None:
        with self.changed:
            self.pins[place] -= 1
            self.changed.notify_all()

    def upload(self, place: int, weight: int) -> None:
        self.host.fill_(weight)
        self.driver.copy(self.weight_slots[place], self.host, self.stream)
        self.driver.record(self.ready[place], self.stream)
        self.driver.synchronize(self.ready[place])

    def replace(self, weight: int, *, careful: bool = True) -> None:
        place = 1 - self.serving
        with self.changed:
            while careful and self.pins[place]:
                self.changed.wait(10)
        self.upload(place, weight)
        with self.changed:
            self.serving, self.weight = place, weight


@pytest.mark.parametrize(("schedule", "seed"), [("eager", 0), ("lazy", 0), ("random", 1), ("random", 2)])
def test_many_threads_are_right_on_one_gpu(schedule: str, seed: int) -> None:
    driver = SimulatedGpus(schedule=schedule, seed=seed).driver(0)
    driver.enter_thread()
    weight_slots = WeightSlots(driver)
    failures: list[BaseException] = []

    def run(session: Session) -> None:
        try:
            session.run(200)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=[Session(driver, weight_slots, number)]) for number in range(4)]
    for thread in threads:
        thread.start()
    for weight in range(1, 40):
        weight_slots.replace(weight)
    for thread in threads:
        thread.join(60)
    assert not failures
    driver.finish()
    assert driver.counts["launch"] == 800


def test_a_slot_that_a_session_still_reads_is_not_replaced() -> None:
    driver = SimulatedGpus().driver(0)
    driver.enter_thread()
    weight_slots = WeightSlots(driver)
    session = Session(driver, weight_slots, 0)
    place, _ = weight_slots.pin()
    driver.launch(session.graphs[place], session.stream)
    weight_slots.replace(1)
    with pytest.raises(
        RaceError, match=r"on stream 'uploads' writes device .*launch 'weight slot 0' on stream 'session 0' reads"
    ):
        weight_slots.replace(2, careful=False)
