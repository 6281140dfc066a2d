"""Tests how a GPU computes the graph: it keeps the fastest runner that agrees, and reports its reasons."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import fx

from serving.engine.model import LoadedModel
from serving.gpu import runners
from serving.gpu.device_model import DeviceModel
from serving.model_config import options
from storage.checkpoint.graph_program import Forward, eager
from storage.errors import CaptureError, Unsupported
from tests.simulated_gpu import SimulatedGpus

MakeModel = Callable[..., LoadedModel]
GPU = "instance_group { kind: KIND_GPU count: 2 }\n"


def gpu(model: LoadedModel) -> DeviceModel:
    return model.parts.devices.models[0]


def ask(model: LoadedModel, world: Any, rows: int) -> None:
    ids = np.arange(rows)
    scores = asyncio.run(model.infer(world.columns(ids), rows)).outputs[0]
    assert np.allclose(scores, world.score(ids), atol=1e-5)


def slow(module: fx.GraphModule) -> Forward:
    def forward(*arguments: torch.Tensor) -> Sequence[torch.Tensor]:
        time.sleep(0.002)
        return eager(module)(*arguments)

    return forward


def wrong(module: fx.GraphModule) -> Forward:
    return lambda *arguments: [value * 1.5 for value in eager(module)(*arguments)]


def impossible(module: fx.GraphModule) -> Forward:
    raise Unsupported("no compiler is installed")


def never_captured(module: fx.GraphModule) -> Forward:
    def forward(*arguments: torch.Tensor) -> Sequence[torch.Tensor]:
        raise CaptureError("it waits for the host")

    return forward


def quick(module: fx.GraphModule) -> Forward:
    return lambda *arguments: eager(module)(*arguments)


@pytest.fixture
def more_runners(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"eager": slow, "wrong": wrong, "impossible": impossible, "waiting": never_captured, "compile": quick}
    monkeypatch.setattr(runners, "RUNNERS", made)
    monkeypatch.setattr(runners, "eager", slow)  # The reference with which the runners are compared.
    monkeypatch.setattr(options, "RUNNER_NAMES", tuple(made))
    monkeypatch.setattr(options, "GPU_RUNNERS", tuple(made))


@pytest.mark.usefixtures("more_runners")
def test_the_fastest_that_agrees_is_kept(make_model: MakeModel, world: Any) -> None:
    text = 'parameters { key: "runners" value { string_value: "eager,wrong,impossible,waiting,compile" } }\n'
    gpus = SimulatedGpus(schedule="random")
    model = make_model(GPU + text, gpus=gpus)
    assert gpu(model).runner == "compile"
    why_not = {candidate.name: candidate.why_not for candidate in gpu(model).candidates}
    assert why_not["eager"] == why_not["compile"] == ""
    assert "differ by" in why_not["wrong"]
    assert why_not["impossible"] == "no compiler is installed"
    assert why_not["waiting"] == "it waits for the host"
    times = {candidate.name: candidate.us for candidate in gpu(model).candidates}
    assert all(times["compile"][size] < times["eager"][size] for size in times["eager"])
    for rows in (1, 5, 64):
        ask(model, world, rows)
    assert gpu(model).not_captured == ""
    assert gpu(model).counters.batches["8"] >= 1
    gpus.driver(0).finish()
    assert not gpus.driver(0).errors


@pytest.mark.usefixtures("more_runners")
def test_without_one_that_agrees_it_is_the_eager_one(make_model: MakeModel, world: Any) -> None:
    model = make_model(GPU + 'parameters { key: "runners" value { string_value: "wrong" } }\n', gpus=SimulatedGpus())
    assert gpu(model).runner == "eager"
    ask(model, world, 7)


@pytest.mark.slow
def test_torch_s_compiler_writes_one_program_for_all_sizes(make_model: MakeModel, world: Any) -> None:
    """Compiles for the processor, which takes the same calls; on a GPU the compiler writes Triton."""
    gpus = SimulatedGpus()
    model = make_model(GPU + 'parameters { key: "runners" value { string_value: "compile" } }\n', gpus=gpus)
    assert gpu(model).runner == "compile", gpu(model).candidates
    for rows in (1, 2, 3, 17, 64):
        ask(model, world, rows)
    gpus.driver(0).finish()
    assert not gpus.driver(0).errors
