"""The fastest runner that agrees is kept, for the whole graph, its halves, and all weights to come."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import fx

from serving.gpu import runners as gpu_runners
from serving.model_config.options import GPU_RUNNERS, PROCESSOR_RUNNERS, ModelOptions
from serving.pipeline import runners
from serving.pipeline.runners import RUNNERS, choose_runner, describe
from storage.checkpoint.graph import DenseGraph
from storage.checkpoint.graph_program import Forward, GraphProgram, PackingForward, _runnable, eager
from storage.checkpoint.halves import GraphHalves
from storage.checkpoint.manifest import GraphInput, GraphOutput
from storage.errors import ConfigError, Unsupported
from tests.support.fused_models import Towers, exported


def graph() -> DenseGraph:
    """Computes y = relu(x @ w)."""
    made = fx.Graph()
    w, x = made.placeholder("w"), made.placeholder("x")
    product = made.call_function(torch.ops.aten.mm.default, (x, w))
    made.output((made.call_function(torch.ops.aten.relu.default, (product,)),))
    program = GraphProgram(fx.GraphModule(torch.nn.Module(), made), [1])
    torch.manual_seed(0)
    return DenseGraph(
        program,
        ["state.w", None],
        {"state.w": torch.randn(4, 2)},
        [1],
        [GraphInput(name="x", kind="dense", source="x", dtype="FP32", shape=(-1, 4), placeholder="x")],
        [GraphOutput(name="y", dtype="FP32", shape=(-1, 2))],
    )


def batches() -> list[list[torch.Tensor]]:
    return [[torch.randn(1, 4)], [torch.randn(16, 4)]]


def slow(module: fx.GraphModule) -> Callable[..., Any]:
    def forward(*arguments: Any) -> Any:
        time.sleep(0.002)
        return module.forward(*arguments)

    return forward


def wrong(module: fx.GraphModule) -> Callable[..., Any]:
    return lambda *arguments: [output + 0.1 for output in module.forward(*arguments)]


def impossible(module: fx.GraphModule) -> Callable[..., Any]:
    raise Unsupported("no such operator here")


@pytest.fixture
def invented(monkeypatch: pytest.MonkeyPatch) -> None:
    more = {"slow": slow, "wrong": wrong, "impossible": impossible}
    monkeypatch.setattr(runners, "RUNNERS", {**RUNNERS, **more})


@pytest.mark.usefixtures("invented")
def test_slow_wrong_and_impossible_runners_are_not_kept_and_say_why() -> None:
    made = graph()
    found = choose_runner(made, ["slow", "wrong", "impossible", "eager"], batches(), 0.0)
    assert made.program.runner == "eager"
    assert [each.name for each in found] == ["slow", "wrong", "impossible", "eager"]
    assert [each.why_not for each in found] == ["", "its outputs differ by 0.1", "no such operator here", ""]
    assert found[0].us[16] > 2000 > found[3].us[16]
    assert "impossible: no such operator here; eager: " in describe(found)


@pytest.mark.usefixtures("invented")
def test_where_none_of_those_asked_for_will_do_it_is_eager() -> None:
    made = graph()
    choose_runner(made, ["wrong", "impossible"], batches(), 1e-3)
    assert made.program.runner == "eager"
    choose_runner(made, ["wrong"], batches(), 0.2)  # the tolerance that the version declares
    assert made.program.runner == "wrong"


def test_the_runner_serves_weights_that_come_later() -> None:
    made = graph()
    made.program.use("script", RUNNERS["script"])
    (tensors,) = batches()[1:]
    other = made.with_weights({"state.w": torch.ones(4, 2)})
    assert other.program is made.program
    assert other.program.runner == "script"
    torch.testing.assert_close(other.run(tensors)[0], torch.relu(tensors[0] @ torch.ones(4, 2)))
    torch.testing.assert_close(made.run(tensors)[0], torch.relu(tensors[0] @ made.weights()["state.w"]))


def test_weights_are_packed_once_for_each_snapshot_and_follow_it() -> None:
    """A graph's own copy of packed weights is made once; other weights of the same program have their own."""
    made = graph()
    packs: list[float] = []

    class Counting(PackingForward):
        def pack(self, arguments: Sequence[Any]) -> Forward:
            weight = arguments[0].clone()
            packs.append(float(weight[0, 0]))
            return lambda *given: (torch.relu(given[1] @ weight),)

    made.program.use("counting", lambda module: Counting())
    (tensors,) = batches()[1:]
    other = made.with_weights({"state.w": torch.ones(4, 2)})
    made.pack()
    for each in (made, other, made, other):
        torch.testing.assert_close(each.run(tensors)[0], torch.relu(tensors[0] @ each.weights()["state.w"]))
    assert packs == [float(made.weights()["state.w"][0, 0]), 1.0]


def test_halves_are_packed_with_their_own_weights() -> None:
    torch.manual_seed(1)
    module, weights = exported(Towers(), [torch.randn(2, 6), torch.randn(2, 4)])
    first = len(weights)
    program = GraphProgram(module, [first, first + 1])
    inputs = [
        GraphInput(name=name, kind="dense", source=name, dtype="FP32", shape=(-1, width), placeholder=name)
        for name, width in (("user", 6), ("item", 4))
    ]
    keys = [*[f"state.{place}" for place in range(first)], None, None]
    made = DenseGraph(
        program,
        keys,
        dict(zip(keys, weights, strict=False)),  # type: ignore[arg-type]
        [first, first + 1],
        inputs,
        [GraphOutput(name="score", dtype="FP32", shape=(-1, 1))],
    )
    program.use("fused", RUNNERS["fused"])
    halves = program.halves([0])
    assert halves is not None
    assert isinstance(halves.user, PackingForward)
    assert isinstance(halves.item, PackingForward)
    rows, users, items = torch.tensor([1, 0, 1]), torch.randn(2, 6), torch.randn(3, 4)
    later = made.with_weights({name: weight + 0.1 for name, weight in made.weights().items()})
    for each in (made, later):
        each.pack()
        (expected,) = each.program.module.forward(*each.weights().values(), users[rows], items)
        torch.testing.assert_close(each.run_halves(halves, [users, items], rows)[0], expected)
    assert not torch.equal(made.run([users[rows], items])[0], later.run([users[rows], items])[0])


def test_a_runner_that_cannot_be_made_changes_nothing() -> None:
    made = graph()
    with pytest.raises(Unsupported):
        made.program.use("impossible", impossible)
    assert made.program.runner == "eager"
    assert made.program.forward == eager(made.program.module)


def test_halves_that_a_runner_does_not_take_are_called_from_python() -> None:
    made = graph()
    whole = made.program.module

    def whole_only(module: fx.GraphModule) -> Callable[..., Any]:
        if module is not whole:
            raise Unsupported("a half")
        return slow(module)

    made.program.use("whole only", whole_only)
    halves = GraphHalves(whole, (0, 1), whole, (0, 1))
    assert _runnable(halves, whole_only).user is not eager(whole)
    other = GraphHalves(fx.GraphModule(torch.nn.Module(), whole.graph), (0, 1), whole, (0, 1))
    runnable = _runnable(other, whole_only)
    assert (runnable.user, runnable.item) == (eager(other.user), eager(other.item))


def test_the_option_names_runners() -> None:
    assert tuple(RUNNERS) == PROCESSOR_RUNNERS
    assert tuple(gpu_runners.RUNNERS) == GPU_RUNNERS
    assert ModelOptions.parse({}).gpu_runners == ("eager",)
    assert ModelOptions.parse({"runners": "script, compile"}).gpu_runners == ("compile",)
    assert ModelOptions.parse({"runners": "eager"}).runners == ("eager",)
    assert ModelOptions.parse({"runners": "script, eager"}).runners == ("script", "eager")
    with pytest.raises(
        ConfigError, match="no runner 'quick'; expected some of eager, script, fused, compile"
    ) as refused:
        ModelOptions.parse({"runners": "eager,quick"})
    assert refused.value.field == "parameters.runners"
