"""Each operator that is converted gives what onnxruntime gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from trainer.converting.onnx_module import convert_onnx
from trainer.converting.onnx_operators import OPERATORS

ROWS = 5
_TYPES = {"f": TensorProto.FLOAT, "i": TensorProto.INT64, "l": TensorProto.INT64, "b": TensorProto.BOOL}
FLOATS, WIDE, BOOLS = [("x", "f", (6,))], [("x", "f", (2, 6))], [("x", "b", (6,))]
PAIR = [("x", "f", (6,)), ("y", "f", (6,))]
INTS = [("x", "i", (6,))]

# A case: operator, inputs (name, kind, shape without the batch), constants behind them, attributes, number of outputs.
Case = tuple[str, list[tuple[str, str, tuple[int, ...]]], list[Any], dict[str, Any], int]


def case(name: str, inputs: list[Any], *constants: Any, outputs: int = 1, **attributes: Any) -> Case:
    return name, inputs, list(constants), attributes, outputs


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


UNARY = (
    "Abs Atan Ceil Cos Cosh Dropout Erf Exp Floor HardSwish Identity IsInf IsNaN Mish Neg Reciprocal Relu Round "
    "Sigmoid Sign Sin Sinh Softplus Softsign Tan Tanh"
)
BINARY = "Add Sub Mul Div Max Min Sum Mean Equal Greater GreaterOrEqual Less LessOrEqual"
CASES = [
    *[case(name, FLOATS) for name in UNARY.split()],
    *[case(name, FLOATS, lift=0.5) for name in ("Log", "Sqrt", "Acos", "Asin")],
    *[case(name, PAIR) for name in BINARY.split()],
    *[case(name, [("x", "b", (6,)), ("y", "b", (6,))]) for name in ("And", "Or", "Xor")],
    case("Not", BOOLS),
    case("Div", INTS, ints(4)),
    case("Mod", INTS, ints(4)),
    case("Pow", FLOATS, np.float32(2)),
    case("Pow", [("x", "f", (6,))], floats(6), lift=0.5),
    case("Pow", [("x", "l", (6,))], ints(2)),
    case("Pow", [("x", "l", (6,))], np.float32(2)),
    case("Pow", [("x", "l", (6,))], ints(2, 1, 0, 2, 1, 2)),
    case("Where", [("c", "b", (6,)), *PAIR]),
    case("Clip", FLOATS, np.float32(-0.5), np.float32(0.5)),
    case("LeakyRelu", FLOATS, alpha=0.2),
    case("Elu", FLOATS, alpha=0.7),
    case("Celu", FLOATS, alpha=0.7),
    case("Selu", FLOATS),
    case("HardSigmoid", FLOATS, alpha=0.3),
    case("Gelu", FLOATS, approximate="tanh"),
    case("PRelu", FLOATS, floats(6)),
    case("MatMul", WIDE, floats(6, 3)),
    case("Gemm", FLOATS, floats(3, 6), floats(3), transB=1),
    case("Gemm", FLOATS, floats(6, 3), floats(3), alpha=0.5, beta=2.0),
    case("Einsum", WIDE, floats(6, 3), equation="bij,jk->bik"),
    case("Softmax", WIDE, axis=1),
    case("LogSoftmax", WIDE),
    case("LayerNormalization", WIDE, floats(6), floats(6)),
    case("RMSNormalization", WIDE, floats(6)),
    case("BatchNormalization", FLOATS, floats(6), floats(6), floats(6), np.abs(floats(6))),
    case("CumSum", FLOATS, np.int64(1)),
    *[case(f"Reduce{name}", WIDE, ints(1), keepdims=0) for name in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2")],
    *[case(f"Reduce{name}", WIDE, ints(-1)) for name in ("SumSquare", "LogSumExp")],
    case("ReduceLogSum", WIDE, ints(-1), lift=2.0),
    case("ArgMax", WIDE, axis=2, keepdims=0),
    case("ArgMin", WIDE, axis=1),
    case("TopK", FLOATS, ints(3), outputs=2),
    case("Shape", WIDE, start=1),
    case("Size", [("x", "f", (6,))]),
    case("Cast", INTS, to=TensorProto.FLOAT),
    case("CastLike", INTS, floats(1)),
    case("Concat", PAIR, axis=1),
    case("Reshape", WIDE, ints(0, -1, 3)),
    case("Flatten", WIDE),
    case("Transpose", WIDE, perm=[0, 2, 1]),
    case("Unsqueeze", FLOATS, ints(1, -1)),
    case("Squeeze", [("x", "f", (1, 6))], ints(1)),
    case("Expand", [("x", "f", (1, 6))], ints(1, 3, 1)),
    case("Tile", FLOATS, ints(1, 2)),
    case("Slice", WIDE, ints(1), ints(5), ints(2), ints(2)),
    case("Slice", WIDE, ints(-1), ints(-(2**63)), ints(2), ints(-1)),
    case("Split", FLOATS, ints(2, 4), axis=1, outputs=2),
    case("Gather", FLOATS, ints(3, 0, -1), axis=1),
    case("Gather", FLOATS, np.int64(2), axis=1),
    case("GatherElements", [("x", "f", (6,)), ("p", "i", (2,))], axis=1),
    case("OneHot", [("p", "i", ())], np.int64(6), np.array([0.0, 2.0], np.float32)),
    case("Trilu", WIDE, np.int64(1), upper=0),
    case("Pad", FLOATS, ints(0, 1, 0, 2), np.float32(3)),
    case("GRU", [("x", "f", (3, 4))], floats(1, 15, 4), floats(1, 15, 5), floats(1, 30), hidden_size=5, outputs=2),
    case("GRU", [("x", "f", (3, 4))], floats(1, 15, 4), floats(1, 15, 5), floats(1, 30), hidden_size=5, outputs=2,
         linear_before_reset=1),
    case("LSTM", [("x", "f", (3, 4))], floats(1, 20, 4), floats(1, 20, 5), floats(1, 40), hidden_size=5, outputs=3),
]  # fmt: skip
# Operators whose inputs are sizes; `test_idioms_of_sizes_keep_the_batch_open` has them.
OF_SIZES = {"ConstantOfShape", "Range"}


def test_every_operator_is_compared() -> None:
    assert {name for name, *_ in CASES} | OF_SIZES == set(OPERATORS)


@pytest.mark.parametrize("given", CASES, ids=lambda given: given[0])
def test_an_operator_gives_what_onnxruntime_gives(given: Case, tmp_path: Path) -> None:
    name, inputs, constants, attributes, outputs = given
    lift = attributes.get("lift")
    attributes = {key: value for key, value in attributes.items() if key != "lift"}
    recurrent = name in ("GRU", "LSTM")
    taken = [entry[0] for entry in inputs]
    nodes = []
    if recurrent:
        nodes.append(helper.make_node("Transpose", ["x"], ["steps"], perm=[1, 0, 2]))
        taken = ["steps"]
    names = [f"c{number}" for number in range(len(constants))]
    results = [f"out{number}" for number in range(outputs)]
    nodes.append(helper.make_node(name, [*taken, *names], results, name="it", **attributes))
    save(tmp_path / "m.onnx", nodes, inputs, dict(zip(names, constants, strict=True)), results, opset=23)
    converted = convert_onnx(tmp_path / "m.onnx")
    random = np.random.default_rng(1)
    batch = {entry: drawn(random, kind, (ROWS, *shape)) for entry, kind, shape in inputs}
    if lift is not None:
        batch = {entry: np.clip(np.abs(values), 0.01, 0.99).astype(np.float32) for entry, values in batch.items()}
    if name == "Gather":
        batch["x"][0, 0] = 3.0
    assert converted.original is not None
    wanted = converted.original(batch)
    if name in ("Shape", "Size"):
        return  # a size is no output; `test_idioms_of_sizes_keep_the_batch_open` computes with one
    got = converted.outputs({entry: torch.from_numpy(np.ascontiguousarray(values)) for entry, values in batch.items()})
    for each in results:
        exact = wanted[each].dtype.kind in "iub"
        np.testing.assert_allclose(
            got[each].numpy(), wanted[each], rtol=0 if exact else 2e-5, atol=0 if exact else 2e-6
        )
        assert got[each].numpy().dtype == wanted[each].dtype


def drawn(random: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    if kind == "f":
        return random.standard_normal(shape).astype(np.float32)
    if kind == "l":
        return random.integers(20_000_000, 90_000_000, shape)
    return random.integers(0, 6, shape) if kind == "i" else random.random(shape) > 0.5


def save(
    path: Path, nodes: list[Any], inputs: list[Any], constants: dict[str, Any], outputs: list[str], opset: int = 17
) -> None:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, _TYPES[kind], ["batch", *shape]) for name, kind, shape in inputs],
        [helper.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    onnx.save(onnx.shape_inference.infer_shapes(model), str(path))


@pytest.mark.parametrize(("name", "attributes"), [("Div", {}), ("Mod", {}), ("Mod", {"fmod": 1})])
def test_whole_constants_are_divided_as_onnxruntime_does(name: str, attributes: dict[str, int], tmp_path: Path) -> None:
    nodes = [
        helper.make_node(name, ["left", "right"], ["known"], **attributes),
        helper.make_node("Add", ["x", "known"], ["out"]),
    ]
    constants = {"left": ints(-7, 7, -7, 7, -6, 0), "right": ints(2, -2, -2, 2, 2, -2)}
    save(tmp_path / "m.onnx", nodes, INTS, constants, ["out"])
    converted = convert_onnx(tmp_path / "m.onnx")
    batch = {"x": np.arange(12).reshape(2, 6)}
    assert converted.original is not None
    got = converted.outputs({"x": torch.from_numpy(batch["x"])})["out"].numpy()
    np.testing.assert_array_equal(got, converted.original(batch)["out"])


@pytest.mark.parametrize(("name", "parts", "outputs"), [("GRU", 3, ["", "out"]), ("LSTM", 4, ["", "", "out"])])
def test_the_first_output_may_be_left_out(name: str, parts: int, outputs: list[str], tmp_path: Path) -> None:
    width = 5 * parts
    nodes = [
        helper.make_node("Transpose", ["x"], ["steps"], perm=[1, 0, 2]),
        helper.make_node(name, ["steps", "w", "r", "b"], outputs, hidden_size=5),
    ]
    constants = {"w": floats(1, width, 4), "r": floats(1, width, 5), "b": floats(1, 2 * width)}
    save(tmp_path / "m.onnx", nodes, [("x", "f", (3, 4))], constants, ["out"])
    converted = convert_onnx(tmp_path / "m.onnx")
    batch = {"x": floats(ROWS, 3, 4)}
    assert converted.original is not None
    got = converted.outputs({"x": torch.from_numpy(batch["x"])})["out"].numpy()
    np.testing.assert_allclose(got, converted.original(batch)["out"], rtol=2e-5, atol=2e-6)


def test_tables_whose_names_differ_in_a_dot_are_two(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gather", ["a.b", "ids"], ["first"]),
        helper.make_node("Gather", ["a_b", "ids"], ["second"]),
        helper.make_node("Gather", ["a.b", "others"], ["third"]),
    ]
    constants = {"a.b": np.zeros((4, 2), np.float32), "a_b": np.ones((4, 2), np.float32)}
    results = ["first", "second", "third"]
    save(tmp_path / "m.onnx", nodes, [("ids", "i", ()), ("others", "i", ())], constants, results)
    converted = convert_onnx(tmp_path / "m.onnx")
    found = converted.outputs({"ids": torch.tensor([1, 2]), "others": torch.tensor([1, 2])})
    assert [float(found[name].mean()) for name in results] == [0.0, 1.0, 0.0]
    assert len({weight.data_ptr() for weight in converted.module.state_dict().values()}) == 2


def test_idioms_of_sizes_keep_the_batch_open(tmp_path: Path) -> None:
    """Shape, Gather, Concat and Reshape; ConstantOfShape with Expand and Where; Range over a dimension."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["rows"]),
        helper.make_node("Unsqueeze", ["rows", "axes"], ["rows1"]),
        helper.make_node("Concat", ["rows1", "minus"], ["flat"], axis=0),
        helper.make_node("Reshape", ["x", "flat"], ["wide"]),
        helper.make_node("Slice", ["shape", "axes1", "axes2"], ["mid"]),
        helper.make_node("Squeeze", ["mid", "axes"], ["steps"]),
        helper.make_node("Range", ["zero", "steps", "one"], ["places"]),
        helper.make_node("Cast", ["places"], ["placesf"], to=TensorProto.FLOAT),
        helper.make_node("ConstantOfShape", ["two"], ["ones"], value=numpy_helper.from_array(np.array([1], np.int64))),
        helper.make_node("Equal", ["flat2", "minus"], ["open"]),
        helper.make_node("Where", ["open", "ones", "flat2"], ["filled"]),
        helper.make_node("Expand", ["placesf", "filled"], ["more"]),
        helper.make_node("Concat", ["rows1", "two"], ["zshape"], axis=0),
        helper.make_node("ConstantOfShape", ["zshape"], ["zeros"]),
        helper.make_node("ReduceSum", ["more"], ["total"], keepdims=0),
        helper.make_node("Concat", ["wide", "zeros"], ["joined"], axis=1),
        helper.make_node("Mul", ["joined", "total"], ["out"]),
    ]
    constants = {"zero": np.int64(0), "one": np.int64(1), "axes": ints(0), "axes1": ints(1), "axes2": ints(2)}
    constants |= {"minus": ints(-1), "flat2": ints(-1, 4), "two": ints(2)}
    save(tmp_path / "m.onnx", nodes, [("x", "f", (4, 6))], constants, ["out"])
    converted = convert_onnx(tmp_path / "m.onnx")
    assert converted.original is not None
    exported = torch.export.export(
        converted.module, ({"x": torch.rand(3, 4, 6)},), dynamic_shapes=({"x": {0: torch.export.Dim("batch")}},)
    )
    for rows in (2, 7):
        batch = np.random.default_rng(rows).random((rows, 4, 6)).astype(np.float32)
        wanted = converted.original({"x": batch})["out"]
        got = exported.module()({"x": torch.from_numpy(batch)})["out"].detach().numpy()
        np.testing.assert_allclose(got, wanted, rtol=1e-5)
