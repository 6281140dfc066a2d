"""Each pass leaves out what it is for, and changes no score."""

from __future__ import annotations

from collections import Counter

import torch

from storage.checkpoint.fused import forward, passes
from storage.checkpoint.fused.lower import Lowered, lower
from storage.checkpoint.fused.steps import Activate, Activation, Copy, Linear, Step, Steps
from tests.support.fused_models import Arranged, Dlrm, exported, separate_inputs, stacked_inputs


def kinds(steps: Steps) -> Counter[type[Step]]:
    return Counter(type(step) for step in steps.steps)


def scores(lowered: Lowered, steps: Steps, arguments: list[torch.Tensor]) -> list[torch.Tensor]:
    function = forward.FusedForward(lowered, forward._plan(steps))
    return list(function(*arguments))


def dlrm() -> tuple[Lowered, list[torch.Tensor]]:
    torch.manual_seed(0)
    module, weights = exported(Dlrm(), separate_inputs(2))
    return lower(module), [*weights, *separate_inputs(50)]


def test_layers_apply_the_activations_that_follow_them() -> None:
    lowered, arguments = dlrm()
    assert kinds(lowered.steps)[Activate] == 4
    fused = passes.with_activations(lowered.steps)
    assert kinds(fused)[Activate] == 0
    found = [step.activation for step in fused.steps if isinstance(step, Linear)]
    assert found == [Activation.RELU, Activation.RELU, Activation.RELU, Activation.SIGMOID]
    before, after = scores(lowered, lowered.steps, arguments), scores(lowered, fused, arguments)
    assert torch.equal(before[0], after[0])


def test_an_activation_stays_where_the_layers_own_result_is_read_too() -> None:
    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 4)

        def forward(self, dense, rows):  # type: ignore[no-untyped-def]
            made = self.layer(dense)
            return torch.relu(made), made + 1

    module, weights = exported(Both(), stacked_inputs(2))
    lowered = lower(module)
    steps = passes.rewritten(lowered.steps)
    assert kinds(steps)[Activate] == 1
    arguments = [*weights, *stacked_inputs(9)]
    for one, other in zip(module.forward(*arguments), scores(lowered, steps, arguments), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-6, atol=1e-6)


def test_what_is_concatenated_is_written_in_its_place() -> None:
    lowered, arguments = dlrm()
    # The bottom's result, the pairs and the score are each copied once.
    assert kinds(lowered.steps)[Copy] == 3
    placed = passes.in_place(lowered.steps)
    assert kinds(placed)[Copy] == 0
    before, after = scores(lowered, lowered.steps, arguments), scores(lowered, placed, arguments)
    assert torch.equal(before[0], after[0])


def test_a_value_that_goes_to_two_places_is_copied_to_the_second() -> None:
    class Twice(torch.nn.Module):
        def forward(self, dense, rows):  # type: ignore[no-untyped-def]
            made = torch.relu(dense)
            return torch.cat([made, dense], 1), torch.cat([dense, made], 1), made

    module, weights = exported(Twice(), stacked_inputs(2))
    lowered = lower(module)
    steps = passes.rewritten(lowered.steps)
    assert kinds(steps)[Copy] == 4  # two of the input, two of the relu's result
    arguments = [*weights, *stacked_inputs(9)]
    for one, other in zip(module.forward(*arguments), scores(lowered, steps, arguments), strict=True):
        assert torch.equal(one, other)


def test_values_that_nothing_reads_are_left_out() -> None:
    torch.manual_seed(1)
    module, weights = exported(Arranged(), stacked_inputs(2))
    lowered = lower(module)
    unused = next(step for step in lowered.steps.steps if isinstance(step, Linear))
    more = Steps(
        (*lowered.steps.values, lowered.steps.values[unused.to.value]),
        lowered.steps.layers,
        lowered.steps.indices,
        (*lowered.steps.steps, Linear(unused.source, type(unused.to)(len(lowered.steps.values), 0), 5, 7, 37, 0)),
    )
    kept = passes.without_unused(more)
    assert len(kept.steps) == len(lowered.steps.steps)
    assert len(kept.values) <= len(lowered.steps.values)
    arguments = [*weights, *stacked_inputs(9)]
    for one, other in zip(scores(lowered, lowered.steps, arguments), scores(lowered, kept, arguments), strict=True):
        assert torch.equal(one, other)


def test_constants_are_computed_once_for_a_set_of_weights() -> None:
    torch.manual_seed(2)
    module, _ = exported(Arranged(), stacked_inputs(2))
    lowered = lower(module)
    names = {str(node.target) for node in lowered.constants.graph.nodes if node.op == "call_function"}
    assert {"aten.mul.Tensor", "aten.add.Tensor"} <= names  # 2 * shift + 1
    assert len(lowered.value_constants) == 4  # that, 0.5, 1/4 and 1, each as wide as what it meets
