"""Rankers in ONNX, TorchScript and .pt2 files become modules with embedding layers, and are published."""

from __future__ import annotations

import json
import re
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner
from onnx import helper, numpy_helper
from torch import Tensor, nn

from emberline.cli.import_dense import torchscript
from emberline.proving.batches import read_batch
from storage import open_version
from storage.errors import EmberlineError, InvalidInput, ParityError, UnsafeArtifact, Unsupported
from trainer.converting import Converted, script_module
from trainer.converting.made_sample import made_sample
from trainer.converting.onnx_file import read_onnx
from trainer.converting.onnx_module import convert_onnx
from trainer.converting.pt2_module import convert_pt2
from trainer.converting.publication import largest_difference, publish_converted, sample_for, tensors_of
from trainer.converting.script_module import convert_torchscript

NAMES = ["user", "pair", "history", "dense"]


class Ranker(nn.Module):
    """Looks up in the ways that rankers do: one id, a column of several, a bag, and a sequence."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.users, self.items = nn.Embedding(100, 4), nn.Embedding(50, 4)
        self.bags = nn.EmbeddingBag(50, 4, mode="mean")
        self.norm = nn.BatchNorm1d(19)
        self.head = nn.Sequential(nn.Linear(19, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))

    def forward(self, user: Tensor, pair: Tensor, history: Tensor, dense: Tensor) -> Tensor:
        sequence = self.items(history)
        weights = torch.softmax(sequence.sum(-1), 1).unsqueeze(1)
        attended = torch.matmul(weights, sequence).view(user.size(0), -1)
        mean = self.items(pair).mean(1)
        parts = [self.users(user), self.items(pair[:, 1]), attended, mean, dense]
        return torch.sigmoid(self.head(self.norm(torch.cat(parts, 1)))).squeeze(1)


class Bags(Ranker):
    def forward(self, user: Tensor, pair: Tensor, history: Tensor, dense: Tensor) -> Tensor:
        parts = [self.users(user), self.items(pair[:, 1]), self.bags(history), self.bags(pair), dense]
        return torch.sigmoid(self.head(self.norm(torch.cat(parts, 1)))).squeeze(1)


def sample(rows: int = 16) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(3)
    ids = {
        "user": torch.randint(0, 100, (rows,), generator=random),
        "pair": torch.randint(0, 50, (rows, 2), generator=random),
        "history": torch.randint(0, 50, (rows, 5), generator=random),
    }
    return {**ids, "dense": torch.rand(rows, 3, generator=random)}


def arguments() -> tuple[Tensor, ...]:
    return tuple(sample().values())


def save_onnx(module: nn.Module, path: Path) -> Converted:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        axes = {name: {0: "batch"} for name in [*NAMES, "ctr"]}
        torch.onnx.export(
            module, arguments(), str(path), input_names=NAMES, output_names=["ctr"], dynamic_axes=axes, dynamo=False
        )
    return convert_onnx(path)


def save_pt2(module: nn.Module, path: Path) -> Converted:
    batch = torch.export.Dim("batch", min=2, max=4096)
    program = torch.export.export(module, arguments(), dynamic_shapes=({0: batch},) * 4, strict=False)
    torch.export.save(program, path)
    return convert_pt2(path)


def save_scripted(module: nn.Module, path: Path) -> Converted:
    return saved_by(torch.jit.script, module, path)


def save_traced(module: nn.Module, path: Path) -> Converted:
    return saved_by(lambda each: torch.jit.trace(each, arguments()), module, path)


def save_frozen(module: nn.Module, path: Path) -> Converted:
    return saved_by(lambda each: torch.jit.freeze(torch.jit.script(each)), module, path)


def saved_by(
    make: Callable[[nn.Module], torch.jit.ScriptModule],
    module: nn.Module,
    path: Path,
    batch: dict[str, Tensor] | None = None,
) -> Converted:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make(module).save(str(path))
        return convert_torchscript(path, batch or sample())


@pytest.mark.parametrize("save", [save_onnx, save_pt2, save_scripted, save_traced, save_frozen])
@pytest.mark.parametrize("kind", [Ranker, Bags])
def test_a_file_is_published_with_the_scores_of_the_module(
    save: Callable[[nn.Module, Path], Converted], kind: type[Ranker], tmp_path: Path
) -> None:
    if save is save_onnx and kind is Bags:
        pytest.skip("torch does not export EmbeddingBag to ONNX without a loop")
    module = kind().eval()
    converted = save(module, tmp_path / "model.file")
    batch = sample()
    difference = largest_difference(converted, batch)
    assert difference is None if save is save_pt2 else difference is not None and difference < 1e-6
    folder = publish_converted(converted, batch, tmp_path / "models", outputs=["ctr"], name="ranker")
    version = open_version(folder)
    assert sorted((table.rows, table.dim) for table in version.tables) == [(50, 4)] * (1 + (kind is Bags)) + [(100, 4)]
    assert [output.name for output in version.manifest.graph.outputs] == ["ctr"]
    golden = version.golden()
    inputs = {name: golden.columns[name].values for name in NAMES}
    rows = len(golden.outputs["ctr"])
    given = [torch.from_numpy(np.array(inputs[name])).reshape(rows, *sample()[name].shape[1:]) for name in NAMES]
    # Some golden requests have ids without a row, which the module itself refuses.
    ids = torch.cat([given[0].unsqueeze(1), *given[1:3]], 1)
    has_rows = ((ids >= 0) & (ids < torch.tensor([100] + [50] * 7))).all(1)
    assert int(has_rows.sum()) > 20
    own = module(*[values[has_rows] for values in given])
    np.testing.assert_allclose(golden.outputs["ctr"][has_rows.numpy(), 0], own.detach().numpy(), atol=1e-6)


def test_a_mean_over_a_row_of_ids_is_pooled_by_the_lookup(tmp_path: Path) -> None:
    converted = save_onnx(Ranker().eval(), tmp_path / "m.onnx")
    kinds = sorted(type(child).__name__ for child in converted.module.children())
    assert kinds == ["Embedding", "Embedding", "Embedding", "EmbeddingBag"], kinds
    tables = {child.get_parameter("weight").data_ptr() for child in converted.module.children()}
    assert len(tables) == 2, "lookups of one constant share its memory"


def test_half_precision_of_onnx_is_computed_in_float32(tmp_path: Path) -> None:
    half = onnx.TensorProto.FLOAT16
    rows, weight = (np.random.default_rng(0).random(shape).astype(np.float16) for shape in ((9, 4), (6, 1)))
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("Concat", ["rows", "dense"], ["wide"], axis=1),
        helper.make_node("MatMul", ["wide", "weight"], ["score"]),
    ]
    inputs = [
        helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["batch"]),
        helper.make_tensor_value_info("dense", half, ["batch", 2]),
    ]
    constants = [numpy_helper.from_array(rows, "table"), numpy_helper.from_array(weight, "weight")]
    outputs = [helper.make_tensor_value_info("score", half, ["batch", 1])]
    model = helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs, constants),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=10,
    )
    onnx.save(model, str(tmp_path / "m.onnx"))
    converted = convert_onnx(tmp_path / "m.onnx")
    batch = sample_for(converted, None)
    assert batch["dense"].dtype == torch.float32
    difference = largest_difference(converted, batch)
    assert difference is not None
    assert 1e-5 < difference < 5e-3
    assert publish_converted(converted, batch, None, name="half")


def test_a_sample_is_made_of_ids_that_the_tables_have(tmp_path: Path) -> None:
    made = made_sample(save_onnx(Ranker().eval(), tmp_path / "m.onnx"), rows=500)
    assert int(made["user"].max()) in range(60, 100)
    assert int(made["history"].max()) in range(40, 50)
    assert made["dense"].dtype == torch.float32


def test_a_sample_of_other_inputs_is_refused_by_name(tmp_path: Path) -> None:
    converted = save_onnx(Ranker().eval(), tmp_path / "m.onnx")
    given = {name: values.numpy() for name, values in sample().items()}
    with pytest.raises(InvalidInput, match="no input 'usr'; did you mean 'user'"):
        sample_for(converted, {**given, "usr": given["user"]})
    with pytest.raises(InvalidInput, match=r"'history' has the shape \[16, 2\], expected \['batch', 5\]"):
        sample_for(converted, {**given, "history": given["pair"]})


@pytest.mark.parametrize(
    ("column", "what"),
    [
        (np.array(["a", "b"], object), "text or objects"),
        (np.array(["2026-01-01", "2026-01-02"], "datetime64[D]"), r"datetime64\[D\]"),
    ],
)
def test_a_column_of_a_sample_without_numbers_is_refused_by_name(tmp_path: Path, column: np.ndarray, what: str) -> None:
    converted = save_onnx(Ranker().eval(), tmp_path / "m.onnx")
    given = {name: values.numpy() for name, values in sample(2).items()}
    with pytest.raises(InvalidInput, match=f"the column 'user' holds {what}, expected numbers or booleans") as refused:
        sample_for(converted, {**given, "user": column})
    assert refused.value.field == "user"
    with pytest.raises(InvalidInput, match=f"the column 'city' holds {what}, expected numbers or booleans"):
        tensors_of({**given, "city": column})


def test_numbers_of_another_order_of_bytes_are_converted(tmp_path: Path) -> None:
    given = {name: values.numpy() for name, values in sample().items()}
    other: dict[str, Any] = {name: values.astype(values.dtype.newbyteorder(">")) for name, values in given.items()}
    np.savez(tmp_path / "s.npz", **{**other, "dense": other["dense"].astype(">f8")})
    found = tensors_of(read_batch(tmp_path / "s.npz"))
    assert {name: values.dtype for name, values in found.items()} == {
        name: values.dtype for name, values in sample().items()
    }
    assert all(torch.equal(found[name], values) for name, values in sample().items())


def test_text_in_the_sample_of_torchscript_is_refused_by_name(tmp_path: Path) -> None:
    save_scripted(Ranker().eval(), tmp_path / "m.pt")
    given: dict[str, Any] = {name: values.numpy() for name, values in sample().items()}
    np.savez(tmp_path / "s.npz", **given, city=np.array(["Ulm"] * 16))
    arguments = [str(tmp_path / "m.pt"), "--sample", str(tmp_path / "s.npz"), "--check"]
    done = CliRunner().invoke(torchscript, arguments)
    assert isinstance(done.exception, InvalidInput), repr(done.exception)
    assert "the column 'city' holds text or objects" in str(done.exception)


def test_all_unknown_operators_are_named(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["a"], name="first"),
        helper.make_node("Fancy", ["x"], ["b"], name="second", domain="com.corp"),
        helper.make_node("NonZero", ["x"], ["c"], name="third"),
    ]
    save_nodes(nodes, tmp_path / "m.onnx")
    with pytest.raises(Unsupported, match=r"NonZero \(first, third\); com.corp.Fancy \(second\)"):
        convert_onnx(tmp_path / "m.onnx")


def test_a_fixed_batch_is_refused_with_what_to_do(tmp_path: Path) -> None:
    save_nodes([helper.make_node("Relu", ["x"], ["a"])], tmp_path / "m.onnx", batch=1)
    with pytest.raises(Unsupported, match=r"the batch of 'x' \(1\) is a fixed number; export with a dynamic one"):
        convert_onnx(tmp_path / "m.onnx")
    module = nn.Sequential(nn.Linear(3, 1))
    torch.export.save(torch.export.export(module, (torch.rand(4, 3),)), tmp_path / "m.pt2")
    with pytest.raises(Unsupported, match="exported with a fixed batch"):
        convert_pt2(tmp_path / "m.pt2")


def save_nodes(nodes: list[onnx.NodeProto], path: Path, batch: str | int = "batch") -> None:
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [batch, 3])]
    graph = helper.make_graph(
        nodes, "g", inputs, [helper.ValueInfoProto(name=node.output[0]) for node in nodes if any(node.output)]
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), str(path))


def external(path: Path, location: str, offset: int = 0, dims: tuple[int, ...] = (4, 2)) -> None:
    table = numpy_helper.from_array(np.zeros((4, 2), np.float32), "table")
    table.ClearField("raw_data")
    table.dims[:] = dims
    table.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", "32")):
        table.external_data.add(key=key, value=value)
    ids = helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["batch"])
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "ids"], ["rows"])],
        "g",
        [ids],
        [helper.ValueInfoProto(name="rows")],
        [table],
    )
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10).SerializeToString()
    )


def test_weights_beside_the_model_are_mapped_and_stay_in_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    rows = np.arange(8, dtype=np.float32).reshape(4, 2)
    (folder / "rows.bin").write_bytes(bytes(64) + rows.tobytes())
    external(folder / "m.onnx", "rows.bin", 64)
    assert np.array_equal(read_onnx(folder / "m.onnx").constants["table"], rows)
    converted = convert_onnx(folder / "m.onnx")
    assert converted.outputs({"ids": torch.tensor([3, 1])})["rows"].tolist() == [[6, 7], [2, 3]]
    (tmp_path / "secret").write_bytes(bytes(64))
    (folder / "link").symlink_to(tmp_path / "secret")
    for location in ("../secret", str(tmp_path / "secret"), "link", "a/../../secret", ""):
        external(folder / "m.onnx", location)
        with pytest.raises(InvalidInput, match="expected a file in the model's folder"):
            read_onnx(folder / "m.onnx")
    external(folder / "m.onnx", "rows.bin", 80)
    with pytest.raises(InvalidInput, match=r"is 32 bytes at 80 of rows\.bin, which has 96"):
        read_onnx(folder / "m.onnx")
    external(folder / "m.onnx", "rows.bin", dims=(2**33, 2**31))  # 0 values in 64 bits
    with pytest.raises(InvalidInput, match="which has 96; its shape takes 73786976294838206464"):
        read_onnx(folder / "m.onnx")
    external(folder / "m.onnx", "rows.bin", dims=(-1, 8))
    with pytest.raises(InvalidInput, match=r"'table' has the shape \[-1, 8\]"):
        read_onnx(folder / "m.onnx")


@pytest.mark.parametrize(
    ("operator", "inputs", "outputs", "said"),
    [
        ("Gather", ["x"], ["y"], "Gather 'n' has 1 inputs, expected 2 to 2"),
        ("Neg", ["x"], [], "Neg 'n' has no output"),
        ("Neg", ["x"], [""], "Neg 'n' has no output"),
        ("Relu", ["x"], ["y", "z"], "Relu 'n' has 2 outputs, expected 1 to 1"),
    ],
)
def test_nodes_with_other_arguments_than_their_operator_are_refused(
    tmp_path: Path, operator: str, inputs: list[str], outputs: list[str], said: str
) -> None:
    last = helper.make_node("Identity", ["x"], ["last"])
    save_nodes([helper.make_node(operator, inputs, outputs, name="n"), last], tmp_path / "m.onnx")
    with pytest.raises(InvalidInput, match=rf"m\.onnx: not an ONNX model: {said}"):
        read_onnx(tmp_path / "m.onnx")


def test_what_is_no_such_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"neither of them")
    for convert in (convert_onnx, convert_pt2, lambda path: convert_torchscript(path, sample())):
        with pytest.raises(InvalidInput, match="not a"):
            convert(tmp_path / "m")


@pytest.mark.parametrize("name", ["m.onnx", "m.pt2", "m.pt"])
@pytest.mark.parametrize("kept", [0.3, 0.9])
def test_a_file_that_is_cut_off_is_refused_by_name(tmp_path: Path, name: str, kept: float) -> None:
    path = tmp_path / name
    {"m.onnx": save_onnx, "m.pt2": save_pt2, "m.pt": save_scripted}[name](Ranker().eval(), path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    convert = {"m.onnx": convert_onnx, "m.pt2": convert_pt2, "m.pt": lambda cut: convert_torchscript(cut, sample())}
    with pytest.raises(EmberlineError, match=re.escape(name)):
        convert[name](path)


def test_a_table_with_nan_is_not_published(tmp_path: Path) -> None:
    module = Ranker().eval()
    with torch.no_grad():
        next(layer for layer in module.modules() if isinstance(layer, nn.Embedding)).weight[3, 0] = torch.nan
    converted = save_onnx(module, tmp_path / "m.onnx")
    with pytest.raises(EmberlineError, match=r"NaN|finite"):
        publish_converted(converted, sample_for(converted, None), tmp_path / "models", name="ranker")
    assert not [path for path in (tmp_path / "models").rglob("*") if path.is_file()]


def longer(model: onnx.ModelProto) -> bytes:
    model.graph.initializer[0].dims[0] += 1
    return model.SerializeToString()


def of_another_type(model: onnx.ModelProto) -> bytes:
    model.graph.input[0].type.tensor_type.elem_type = 71
    return model.SerializeToString()


def not_text(model: onnx.ModelProto) -> bytes:
    return model.SerializeToString().replace(b"Gather", b"G\xffther")


@pytest.mark.parametrize("damage", [longer, of_another_type, not_text])
def test_a_damaged_onnx_file_is_refused_by_name(tmp_path: Path, damage: Callable[[onnx.ModelProto], bytes]) -> None:
    save_onnx(Ranker().eval(), tmp_path / "m.onnx")
    (tmp_path / "m.onnx").write_bytes(damage(onnx.load(tmp_path / "m.onnx")))
    with pytest.raises(InvalidInput, match=r"m\.onnx: .*(damaged|unknown type|no text)"):
        convert_onnx(tmp_path / "m.onnx")


@pytest.mark.parametrize(("field", "value"), [(42, b"\xff\xff\xff\x7f"), (8, b"\x00\x08"), (8, b"\x01\x00")])
def test_a_damaged_pt2_file_is_refused_by_name(tmp_path: Path, field: int, value: bytes) -> None:
    """Other than it was is the place of the first member, or its name is no UTF-8, or it is encrypted."""
    save_pt2(Ranker().eval(), tmp_path / "m.pt2")
    data = bytearray((tmp_path / "m.pt2").read_bytes())
    entries = [match.start() for match in re.finditer(rb"PK\x01\x02", data)]
    (entry,) = [place for place in entries if b"models/" in data[place : place + 80]]
    data[entry + field : entry + field + len(value)] = value
    if value == b"\x00\x08":
        data[entry + 46] = 0xFF
    (tmp_path / "m.pt2").write_bytes(data)
    with pytest.raises(InvalidInput, match=r"m\.pt2: "):
        convert_pt2(tmp_path / "m.pt2")


def test_no_pickle_in_a_pt2_file_is_read(tmp_path: Path) -> None:
    save_pt2(Ranker().eval(), tmp_path / "good.pt2")
    with zipfile.ZipFile(tmp_path / "good.pt2") as good, zipfile.ZipFile(tmp_path / "bad.pt2", "w") as bad:
        for entry in good.infolist():
            content = good.read(entry)
            if entry.filename.endswith("model_weights_config.json"):
                config = json.loads(content)
                next(iter(config["config"].values()))["use_pickle"] = True
                content = json.dumps(config).encode()
            bad.writestr(entry.filename, content)
    with pytest.raises(UnsafeArtifact, match="is stored as a pickle, which could run code"):
        convert_pt2(tmp_path / "bad.pt2")


def test_inputs_of_torchscript_may_be_named_by_their_place(tmp_path: Path) -> None:
    module = Ranker().eval()
    save_scripted(module, tmp_path / "m.pt")
    numbered = {f"INPUT__{place}": values for place, values in reversed(list(enumerate(arguments())))}
    converted = convert_torchscript(tmp_path / "m.pt", numbered)
    assert torch.equal(converted.module(numbered), module(*arguments()))
    with pytest.raises(InvalidInput, match=r"forward\(\) takes \['user', 'pair', 'history', 'dense'\]"):
        convert_torchscript(tmp_path / "m.pt", {"user": arguments()[0]})


@pytest.mark.parametrize(
    ("own", "other", "difference"),
    [
        ([np.inf, 0.5, np.nan], [np.inf, 0.5, np.nan], 0.0),
        ([np.inf, 0.5, np.nan], [np.inf, 0.6, np.nan], None),
        ([np.inf, 0.5, 1.0], [-np.inf, 0.5, 1.0], None),
        ([np.nan, 0.5, 1.0], [0.0, 0.5, 1.0], None),
        ([0.0, 0.5, 1.0], [np.inf, 0.5, 1.0], None),
    ],
)
def test_values_that_are_not_finite_hide_no_difference(
    own: list[float], other: list[float], difference: float | None
) -> None:
    class Fixed(nn.Module):
        def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
            return {"out": torch.tensor(own)}

    converted = Converted(Fixed(), (), lambda batch: {"out": np.array(other, np.float32)})
    if difference is not None:
        assert largest_difference(converted, {}) == difference
    else:
        with pytest.raises(ParityError, match="output 'out' of row"):
            largest_difference(converted, {})


class Sorted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.unique(x).sum() + torch.nonzero(x).sum() + x.sum(1)


def test_all_unknown_operators_of_torchscript_are_named(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(Sorted()).save(str(tmp_path / "m.pt"))
        with pytest.raises(Unsupported, match=r"aten::_unique2 \(.*aten::nonzero"):
            convert_torchscript(tmp_path / "m.pt", {"x": torch.rand(4, 3)})


class Counting(nn.Module):
    """Computes with numbers as Python does, and loops as often as it is told."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, x: Tensor) -> Tensor:
        width = x.size(1)
        kept = int(width * 0.6)
        bits = (width & 6) + (width ^ 1) + (kept | 4)
        total = x[:, :kept].sum(1) * float(bits)
        for step in range(self.steps):
            total = total + int(step > 2)
        return total if bool(kept) else total * 0


def test_numbers_of_torchscript_are_computed_as_python_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, module = torch.rand(4, 7), Counting(5)
    converted = saved_by(torch.jit.script, module, tmp_path / "m.pt", {"x": x})
    torch.testing.assert_close(converted.module({"x": x}), module(x))
    monkeypatch.setattr(script_module, "_MAX_STEPS", 4)
    with pytest.raises(Unsupported, match=r"m.pt: a loop of more than 4 steps \(File "):
        converted.module({"x": x})


@pytest.mark.parametrize("kind", ["pt2", "pt"])
def test_a_file_in_training_mode_is_refused(kind: str, tmp_path: Path) -> None:
    module, path = Ranker().train(), tmp_path / f"m.{kind}"

    def traced(module: nn.Module, path: Path) -> Converted:
        return saved_by(lambda each: torch.jit.trace(each, arguments(), check_trace=False), module, path)

    save = save_pt2 if kind == "pt2" else traced
    with torch.no_grad(), pytest.raises(Unsupported, match=r"training mode.*call eval\(\) before") as refusal:
        save(module, path)
    if kind == "pt2":
        assert re.search(r"batch_norm \(\w+\), dropout \(\w+\)", str(refusal.value))
