"""Forms of ONNX operators that exporters write and that the usual ones do not show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from tests.unit.converting.test_onnx_operators import INTS, ROWS, WIDE, drawn, floats, ints, save
from trainer.converting import Converted
from trainer.converting.converted import HALF_TOLERANCE
from trainer.converting.onnx_module import convert_onnx

TABLE = floats(6, 3)
IDS = [("x", "i", ())]


def compared(path: Path, inputs: list[Any], rows: int = ROWS) -> Converted:
    """Compares all outputs, and their types, with onnxruntime's."""
    converted = convert_onnx(path)
    random = np.random.default_rng(3)
    for count in (rows, 1):
        batch = {name: drawn(random, kind, (count, *shape)) for name, kind, shape in inputs}
        assert converted.original is not None
        wanted = converted.original(batch)
        got = converted.outputs({name: torch.from_numpy(values) for name, values in batch.items()})
        for name, values in wanted.items():
            np.testing.assert_allclose(got[name].numpy(), values, rtol=2e-5, atol=2e-6)
            assert got[name].numpy().dtype == values.dtype
    return converted


@pytest.mark.parametrize("given", [["Sigmoid", "Tanh", "Tanh"], ["sigmoid", "tanh", "tanh"]])
def test_activations_that_are_the_usual_ones_are_computed(given: list[str], tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["steps"], perm=[1, 0, 2]),
        helper.make_node("LSTM", ["steps", "w", "r"], ["out"], hidden_size=5, activations=given),
    ]
    save(tmp_path / "m.onnx", nodes, [("x", "f", (3, 4))], {"w": floats(1, 20, 4), "r": floats(1, 20, 5)}, ["out"])
    compared(tmp_path / "m.onnx", [("x", "f", (3, 4))])


@pytest.mark.parametrize(
    "before",
    [
        [],
        [helper.make_node("Identity", ["table"], ["same"])],
        [helper.make_node("Cast", ["table"], ["same"], to=TensorProto.FLOAT)],
    ],
    ids=["", "Identity", "Cast"],
)
def test_a_table_is_looked_up_by_its_axis_from_the_end_and_behind_what_hands_it_on(
    before: list[Any], tmp_path: Path
) -> None:
    table = "same" if before else "table"
    nodes = [*before, helper.make_node("Gather", [table, "x"], ["out"], axis=-2)]
    save(tmp_path / "m.onnx", nodes, IDS, {"table": TABLE}, ["out"])
    converted = compared(tmp_path / "m.onnx", IDS)
    assert [type(each) for each in converted.module.children()] == [torch.nn.Embedding]
    assert [list(each.shape) for each in converted.module.state_dict().values()] == [[6, 3]]


@pytest.mark.parametrize(
    ("name", "axes"), [("ReduceMean", (1,)), ("ReduceSum", (1,)), ("ReduceProd", (1,)), ("ReduceMax", (-1,))]
)
def test_reductions_of_whole_numbers_stay_whole_numbers_of_their_type(
    name: str, axes: tuple[int, ...], tmp_path: Path
) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["small"], to=TensorProto.INT32),
        helper.make_node("Neg", ["small"], ["less"]),
        helper.make_node(name, ["less", "axes"], ["out"], keepdims=0),
    ]
    save(tmp_path / "m.onnx", nodes, INTS, {"axes": ints(*axes)}, ["out"], opset=18)
    compared(tmp_path / "m.onnx", INTS)


def test_a_running_sum_has_the_type_of_its_input(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["small"], to=TensorProto.INT32),
        helper.make_node("CumSum", ["small", "axis"], ["out"]),
    ]
    save(tmp_path / "m.onnx", nodes, INTS, {"axis": np.int64(-1)}, ["out"])
    compared(tmp_path / "m.onnx", INTS)


def test_squeeze_without_axes_takes_every_size_of_1_and_never_the_batch(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["turned"], perm=[1, 0, 2]),
        helper.make_node("Squeeze", ["turned"], ["rows"]),
        helper.make_node("Add", ["rows", "one"], ["out"]),
    ]
    save(tmp_path / "m.onnx", nodes, [("x", "f", (1, 6))], {"one": np.ones(6, np.float32)}, ["out"])
    converted = convert_onnx(tmp_path / "m.onnx")
    for rows in (ROWS, 1):
        x = floats(rows, 1, 6)
        np.testing.assert_allclose(converted.outputs({"x": torch.from_numpy(x)})["out"].numpy(), x[:, 0] + 1)


def test_constants_are_reshaped_and_multiplied_by_axis(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Reshape", ["known", "shape"], ["flat"]),
        helper.make_node("ReduceProd", ["known"], ["products"], axes=[1], keepdims=0),
        helper.make_node("ReduceProd", ["known"], ["kept"], axes=[0], keepdims=1),
        helper.make_node("Add", ["x", "flat"], ["first"]),
        helper.make_node("Add", ["kept", "first"], ["second"]),
        helper.make_node("ReduceSum", ["products"], ["total"], keepdims=0),
        helper.make_node("Add", ["second", "total"], ["out"]),
    ]
    constants = {"known": np.arange(1, 13).reshape(2, 6), "shape": ints(0, -1)}
    save(tmp_path / "m.onnx", nodes, [("x", "i", (2, 6))], constants, ["out"])
    compared(tmp_path / "m.onnx", [("x", "i", (2, 6))])


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Constant", [], ["half"], value=numpy_helper.from_array(np.array([0.1], np.float16), "half")),
        helper.make_node("Cast", ["x"], ["half"], to=TensorProto.FLOAT16),
    ],
    ids=["Constant", "Cast"],
)
def test_half_precision_is_known_wherever_it_stands(node: Any, tmp_path: Path) -> None:
    nodes = [
        node,
        helper.make_node("Cast", ["half"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "wide"], ["out"]),
    ]
    save(tmp_path / "m.onnx", nodes, WIDE, {}, ["out"])
    assert convert_onnx(tmp_path / "m.onnx").tolerance == HALF_TOLERANCE
