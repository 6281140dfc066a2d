"""Payloads planted in a graph: each is refused by name, torch never sees it, and nothing runs.

Every payload, if it were evaluated, would create the sentinel file.
"""

from __future__ import annotations

import copy
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.checkpoint import graph as graph_module
from storage.checkpoint.archive import MEMBER, pack_graph
from storage.checkpoint.document import GraphDocument, is_node_name, parse_document
from storage.checkpoint.expressions import check_expression
from storage.checkpoint.graph import load_graph
from storage.checkpoint.manifest import GraphEntry
from storage.checkpoint.operators import ATEN, check_operator, resolve_operator
from storage.checkpoint.program import PackedProgram
from storage.checkpoint.tensors import write_tensors
from storage.errors import UnsafeArtifact

Plant = Callable[[dict[str, Any], str], None]


@pytest.fixture
def sentinel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that no payload may create; torch's deserializer must not be reached either."""

    def unreachable(*_: object) -> None:
        raise AssertionError("a planted graph reached torch")

    monkeypatch.setattr(graph_module, "build_graph", unreachable)
    return tmp_path / "payload-ran"


def refuse(folder: Path, archive: bytes, packed: PackedProgram, entry: GraphEntry) -> str:
    (folder / "dense.pt2").write_bytes(archive)
    (folder / "dense.safetensors").unlink(missing_ok=True)
    write_tensors(folder / "dense.safetensors", packed.weights)
    with pytest.raises(UnsafeArtifact) as caught:
        load_graph((folder / "dense.pt2").read_bytes(), (folder / "dense.safetensors").read_bytes(), entry)
    return str(caught.value)


def nodes(content: dict[str, Any]) -> list[dict[str, Any]]:
    return content["graph_module"]["graph"]["nodes"]


def first_symbolic(content: dict[str, Any]) -> dict[str, Any]:
    for meta in content["graph_module"]["graph"]["tensor_values"].values():
        for size in meta["sizes"]:
            if "as_expr" in size:
                return size["as_expr"]
    raise AssertionError("the program has no dynamic size")


def rename_value(content: dict[str, Any], name: str) -> None:
    old = nodes(content)[0]["outputs"][0]
    text = json.dumps(content).replace(json.dumps(next(iter(next(iter(old.values())).values()))), json.dumps(name))
    content.clear()
    content.update(json.loads(text))


def plant_expression(content: dict[str, Any], code: str) -> None:
    first_symbolic(content)["expr_str"] = f"__import__('os').system({code!r})"


def plant_expression_in_symbol(content: dict[str, Any], code: str) -> None:
    first_symbolic(content)["expr_str"] = f"Symbol('s0', integer=__import__('os').system({code!r}))"


def plant_symbolic_value(content: dict[str, Any], code: str) -> None:
    content["graph_module"]["graph"]["sym_int_values"]["n"] = {"as_expr": {"expr_str": f"exec({code!r})", "hint": None}}


def plant_target_python(content: dict[str, Any], code: str) -> None:
    nodes(content)[0].update(target="torch.os.system", inputs=[_string("command", code)])


def plant_target_load(content: dict[str, Any], code: str) -> None:
    nodes(content)[0]["target"] = "torch.load"


def plant_target_operator(content: dict[str, Any], code: str) -> None:
    nodes(content)[0]["target"] = "_operator.methodcaller"


def plant_target_extension(content: dict[str, Any], code: str) -> None:
    nodes(content)[0]["target"] = "#custom:op"


def plant_target_file(content: dict[str, Any], code: str) -> None:
    nodes(content)[0]["target"] = "torch.ops.aten.from_file.default"


def plant_target_inplace(content: dict[str, Any], code: str) -> None:
    nodes(content)[0]["target"] = "torch.ops.aten.add_.Tensor"


def plant_target_out(content: dict[str, Any], code: str) -> None:
    nodes(content)[0]["target"] = "torch.ops.aten.add.out"


def plant_target_dunder(content: dict[str, Any], code: str) -> None:
    nodes(content)[0]["target"] = "torch.ops.aten.add.__class__"


def plant_higher_order(content: dict[str, Any], code: str) -> None:
    nodes(content)[0]["target"] = "torch.ops.higher_order.cond"


def plant_operator_argument(content: dict[str, Any], code: str) -> None:
    nodes(content)[0]["inputs"][0]["arg"] = {"as_operator": "torch.os.system"}


def plant_subgraph(content: dict[str, Any], code: str) -> None:
    graph = copy.deepcopy(content["graph_module"]["graph"])
    nodes(content)[0]["inputs"][0]["arg"] = {"as_graph": {"name": "inner", "graph": graph}}


def plant_custom_object(content: dict[str, Any], code: str) -> None:
    nodes(content)[0]["inputs"][0]["arg"] = {"as_custom_obj": {"name": "o", "class_fqn": "os.system"}}


def plant_custom_values(content: dict[str, Any], code: str) -> None:
    content["graph_module"]["graph"]["custom_obj_values"] = {"o": {"name": "o", "class_fqn": "os.system"}}


def plant_node_name(content: dict[str, Any], code: str) -> None:
    rename_value(content, f"x = __import__('os').system({code!r}) #")


def plant_node_label(content: dict[str, Any], code: str) -> None:
    nodes(content)[0]["name"] = f"a\n    __import__('os').system({code!r})"


def plant_shadowing_name(content: dict[str, Any], code: str) -> None:
    rename_value(content, "torch")


def plant_string_argument(content: dict[str, Any], code: str) -> None:
    nodes(content)[0]["inputs"][0]["arg"] = {"as_string": f"');__import__('os').system({code!r})#"}


def plant_metadata(content: dict[str, Any], code: str) -> None:
    nodes(content)[0]["metadata"] = {"source_fn_stack": "x,torch.os.system"}


def plant_module_metadata(content: dict[str, Any], code: str) -> None:
    content["graph_module"]["metadata"] = {"custom": "{}"}


def plant_call_graph(content: dict[str, Any], code: str) -> None:
    content["graph_module"]["module_call_graph"] = [{"fqn": "", "signature": None}]


def plant_guard(content: dict[str, Any], code: str) -> None:
    content["guards_code"] = [f"__import__('os').system({code!r})"]


def plant_verifier(content: dict[str, Any], code: str) -> None:
    content["verifiers"] = ["EDGE"]


def plant_unknown_key(content: dict[str, Any], code: str) -> None:
    content["graph_module"]["hook"] = code


def plant_range(content: dict[str, Any], code: str) -> None:
    content["range_constraints"] = {"u999999999": {"min_val": 0, "max_val": 1}}


def plant_device(content: dict[str, Any], code: str) -> None:
    next(iter(content["graph_module"]["graph"]["tensor_values"].values()))["device"] = {"type": "meta", "index": None}


def plant_buffer_mutation(content: dict[str, Any], code: str) -> None:
    output = content["graph_module"]["signature"]["output_specs"][0]["user_output"]["arg"]["as_tensor"]
    content["graph_module"]["signature"]["output_specs"] = [{"buffer_mutation": {"arg": output, "buffer_name": "b"}}]


def plant_weight_name(content: dict[str, Any], code: str) -> None:
    for spec in content["graph_module"]["signature"]["input_specs"]:
        if "parameter" in spec:
            spec["parameter"]["parameter_name"] = f"__import__('os').system({code!r})"


def _string(name: str, value: str) -> dict[str, Any]:
    return {"name": name, "arg": {"as_string": value}, "kind": 1}


PLANTS = [value for name, value in sorted(globals().items()) if name.startswith("plant_")]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__.removeprefix("plant_"))
def test_planted_graph_is_refused_before_torch(
    plant: Plant, tmp_path: Path, sentinel: Path, packed: PackedProgram, graph_entry: GraphEntry
) -> None:
    content = json.loads(packed.document)
    plant(content, f"touch {sentinel}")
    assert content != json.loads(packed.document)
    message = refuse(tmp_path, pack_graph(json.dumps(content).encode()), packed, graph_entry)
    assert "graph" in message or "dense.pt2" in message
    assert not sentinel.exists()


def test_the_untouched_graph_passes_the_same_transport(packed: PackedProgram) -> None:
    document = parse_document(packed.document, max_bytes=1 << 20)
    assert isinstance(document, GraphDocument)
    assert document.to_json_value() == json.loads(packed.document)


class Payload:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def archive_with(members: list[tuple[str, bytes]], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in members:
            archive.writestr(zipfile.ZipInfo(name), data, compress_type=compression)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "name",
    ["data.pkl", "archive/data/sample_inputs/model.pt", "../graph.json", "/etc/passwd", "x\\..\\y", "graph.json/"],
)
def test_an_extra_member_is_refused_by_name(
    name: str, tmp_path: Path, sentinel: Path, packed: PackedProgram, graph_entry: GraphEntry
) -> None:
    evil = pickle.dumps(Payload(sentinel))
    for members in (
        [(MEMBER, packed.document), (name, evil)],
        [(name, evil), (MEMBER, packed.document)],
        [(name, evil)],
    ):
        message = refuse(tmp_path, archive_with(members), packed, graph_entry)
        assert repr(name) in message
    assert not sentinel.exists()


def test_other_tricks_with_the_archive_are_refused(
    tmp_path: Path, sentinel: Path, packed: PackedProgram, graph_entry: GraphEntry
) -> None:
    good = pack_graph(packed.document)

    def refused(archive: bytes) -> str:
        return refuse(tmp_path, archive, packed, graph_entry)

    with pytest.warns(UserWarning, match="Duplicate name"):
        twice = archive_with([(MEMBER, packed.document), (MEMBER, packed.document)])
    assert "2 members" in refused(twice)
    bomb = archive_with([(MEMBER, b" " * (1 << 24))], zipfile.ZIP_DEFLATED)
    assert len(bomb) < 1 << 16
    assert "compressed" in refused(bomb)
    assert "beside its one member" in refused(b"#!/bin/sh\n" + good)
    with io.BytesIO(good) as buffer:
        with zipfile.ZipFile(buffer, "a") as archive:
            archive.comment = b"hidden"
        assert "beside its one member" in refused(buffer.getvalue())
    assert "archive" in refused(good + b"tail")
    assert "not a readable archive" in refused(pickle.dumps(Payload(sentinel)))
    assert "not a readable archive" in refused(b"")
    assert not sentinel.exists()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"[" * 100_000, "deeper"),
        (b'{"a":1,"a":2}', "repeats"),
        (b'{"a":NaN}', "NaN"),
        (b'{"a":\xff}', "not plain JSON"),
        (b"{", "not plain JSON"),
        (b"[]", "graph"),
        (b"x" * 2048, "at most"),
    ],
)
def test_json_that_is_not_plain_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(UnsafeArtifact, match=reason):
        parse_document(data, max_bytes=1024 if reason == "at most" else 1 << 20)


@pytest.mark.parametrize(
    "text",
    [
        "3",
        "s31",
        "2*s31 + 1",
        "(s0 - 1)//4",
        "s0 % 8",
        "s0**2",
        "Symbol('s31', positive=True, integer=True)",
        "Mul(Integer(2), Symbol('s31', positive=True, integer=True))",
        "Add(Integer(-1), FloorDiv(Symbol('s3', integer=True), Integer(4)))",
        "Eq(s0, 4)",
        "Max(1, s0)",
        "s0 <= 5",
        "-s0",
    ],
)
def test_integer_arithmetic_on_sizes_passes(text: str) -> None:
    check_expression(text, where="test")


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "().__class__",
        "os",
        "S",
        "u0",
        "s0.__class__",
        "s0[0]",
        "[x for x in s0]",
        "lambda: 1",
        "(s0 := 1)",
        "'s0'",
        "1.5",
        "True",
        "eval('1')",
        "Symbol('os')",
        "Symbol('s0', cls=1)",
        "Symbol(s0)",
        "Symbol('s0', **s1)",
        "Max(*s0)",
        "Integer('1')",
        "9**9**9**9",
        "Pow(Integer(9), Integer(999999999))",
        "((9223372036854775807**2)**2)**2",
        "Pow(s0 * Pow(s1, Integer(2)), Integer(2))",
        "s0 if s1 else s2",
        "s0 << 3",
        f"{2**63}",
        "s0, s1",
        "s0; s1",
        "",
        "-" * 40 + "s0",
        "s0" + "+1" * 600,
        "(" * 300,
        "\x00",
    ],
)
def test_anything_else_is_no_expression(text: str) -> None:
    with pytest.raises(UnsafeArtifact, match="here"):
        check_expression(text, where="here")


@given(st.text(alphabet="s0123456789()+*-/%'\".,_ abcdeimoprt[]", max_size=40))
def test_an_accepted_expression_has_no_attribute_string_call_or_import(text: str) -> None:
    try:
        check_expression(text, where="test")
    except UnsafeArtifact:
        return
    # What passes without a named function is arithmetic only: evaluating it with nothing but sizes must work.
    if "(" not in text or text.lstrip(" (").startswith(("s", "-", *"0123456789")):
        assert "." not in text
        assert "_" not in text


@pytest.mark.parametrize(
    "name", ["", "a b", "a-b", "1a", "é", "lambda", "None", "print", "__builtins__", "torch", "a\n", "a" * 300]
)
def test_names_that_code_could_trip_over_are_not_node_names(name: str) -> None:
    assert not is_node_name(name)


def test_every_listed_operator_exists_and_none_writes_or_draws() -> None:
    import torch

    # Random, file and value-dependent operators must stay away, whatever is added to the list.
    banned = ("rand", "bernoulli", "dropout", "multinomial", "normal_", "from_file", "nonzero", "item", "print", "save")
    for name in sorted(ATEN):
        packet = getattr(torch.ops.aten, name)
        assert not any(word in name for word in banned if word not in ("nonzero",)) or name == "count_nonzero", name
        pure = [overload for overload in packet.overloads() if not getattr(packet, overload)._schema.is_mutable]
        assert pure, name
        for overload in pure:
            resolve_operator(f"torch.ops.aten.{name}.{overload}", where="test")
        for overload in set(packet.overloads()) - set(pure):
            with pytest.raises(UnsafeArtifact, match="writes into"):
                resolve_operator(f"torch.ops.aten.{name}.{overload}", where="test")


@given(st.text(max_size=60))
def test_no_other_text_names_an_operator(text: str) -> None:
    for target in (text, f"torch.{text}", f"_operator.{text}", f"torch.ops.aten.{text}", f"math.{text}"):
        try:
            check_operator(target, where="test")
        except UnsafeArtifact:
            continue
        assert target.startswith(("torch.ops.aten.", "_operator.", "torch.sym_"))
