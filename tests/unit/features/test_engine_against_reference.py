"""The C++ engine and the plain Python one give the same ids, bit by bit, and the same numbers, for any spec."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage.errors import InvalidInput
from storage.features import FeatureEngine, FeatureSpec, column_from_lists, column_from_rows
from tests.support.examples import examples

_path = Path(__file__).with_name("reference.py")
_spec = importlib.util.spec_from_file_location("features_reference", _path)
assert _spec is not None
assert _spec.loader is not None
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)

INTS = st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1))
BYTES = st.one_of(st.sampled_from([b"", b"a", b"12345678", b"123456789"]), st.binary(max_size=20))
FLOATS = st.one_of(st.sampled_from([0.0, -1.0, 2.5]), st.floats(-1e6, 1e6, width=32))
VALUES = {
    "INT64": INTS,
    "INT32": st.integers(-(2**31), 2**31 - 1),
    "UINT64": st.integers(0, 2**64 - 1),
    "BYTES": BYTES,
    "FP32": FLOATS,
    "FP64": st.floats(-1e12, 1e12),
    "BOOL": st.booleans(),
}
DEFAULTS = {**VALUES, "BYTES": st.text(max_size=5)}
SEEDS = st.one_of(st.integers(0, 3), st.integers(0, 2**63 - 1))
# Worked out by the plain Python hash.
KNOWN_INTS = [2343547176215484546, 8217840816304541083, 1741238779798006877]
KNOWN_BYTES = [908741466691156560, 5261950785646933645, 6840451090741147891, 2069338291818849330]
KNOWN_BUCKETS = [71, 676]
BUCKETS = st.one_of(st.none(), st.integers(1, 100), st.integers(1, 2**63 - 1))


def without_none(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if value is not None}


@st.composite
def input_entries(draw: st.DrawFn, name: str, dtypes: list[str] | None = None) -> dict[str, Any]:
    dtype = draw(st.sampled_from(dtypes or sorted(VALUES)))
    is_list = draw(st.booleans())
    default = None
    if draw(st.booleans()):
        default = draw(st.lists(DEFAULTS[dtype], max_size=3) if is_list else DEFAULTS[dtype])
    return without_none(
        {
            "name": name,
            "dtype": dtype,
            "kind": "list" if is_list else "fixed",
            "width": None if is_list else draw(st.integers(1, 3)),
            "side": draw(st.sampled_from(["item", "user"])),
            "missing": draw(st.sampled_from(["error", "null"])),
            "default": default,
            "empty": draw(st.sampled_from([None, "null"])) if is_list or dtype == "BYTES" else None,
            "max_length": 6 if is_list else None,
        }
    )


@st.composite
def rows_of(draw: st.DrawFn, entry: dict[str, Any], batch: int) -> list[Any] | None:
    if entry["missing"] == "null" and draw(st.integers(0, 4)) == 0:
        return None
    count = 1 if entry["side"] == "user" and draw(st.booleans()) else batch
    value = VALUES[entry["dtype"]]
    if entry["dtype"] in ("FP32", "FP64") and (entry["missing"] == "null" or "default" in entry):
        value = st.one_of(value, st.just(math.nan))
    if entry["kind"] == "list":
        row: st.SearchStrategy[Any] = st.lists(value, max_size=6)
    elif entry["width"] > 1:
        row = st.lists(st.one_of(st.none(), value), min_size=entry["width"], max_size=entry["width"])
    else:
        row = value
    return draw(st.lists(st.one_of(st.none(), row), min_size=count, max_size=count))


@st.composite
def pipelines(draw: st.DrawFn, entry: dict[str, Any], output: str, *, weighted: bool = False) -> list[dict[str, Any]]:
    """Draws transforms that fit the input and end in what the output needs. weighted: each value keeps its weight."""
    ops: list[dict[str, Any]] = []
    kind = {"BYTES": "bytes", "FP32": "float", "FP64": "float"}.get(entry["dtype"], "int64")
    fixed, width = entry["kind"] == "fixed", entry.get("width", 0)
    if fixed and width > 1 and draw(st.booleans()):
        start = draw(st.integers(0, width - 1))
        stop = draw(st.integers(start + 1, width))
        ops.append(
            {"op": "select", "index": start} if stop == start + 1 else {"op": "slice", "start": start, "stop": stop}
        )
        width = stop - start
    if kind == "float" and draw(st.integers(0, 3)) == 0:
        ops.append({"op": "integer"})
        kind = "int64"
    if kind == "int64" and draw(st.booleans()):
        count = draw(st.sampled_from([1, width])) if fixed else 1
        ops.append({"op": "add", "values": draw(st.lists(INTS, min_size=count, max_size=count))})
    if kind == "int64" and draw(st.integers(0, 3)) == 0:
        ops.append({"op": "multiply", "factor": draw(INTS)})
    if kind == "int64" and draw(st.booleans()):
        first, last = sorted([draw(INTS), draw(INTS)])
        bounds = draw(st.sampled_from([{"low": first}, {"high": last}, {"low": first, "high": last}]))
        ops.append({"op": "replace", **bounds, "outside": draw(st.booleans()), "by": draw(INTS)})
    if kind == "int64" and draw(st.booleans()):
        values = draw(st.lists(INTS, min_size=1, max_size=5, unique=True))
        ops.append({"op": "vocabulary", "values": values, "unknown": draw(st.one_of(st.just("absent"), INTS))})
    if kind == "int64" and draw(st.booleans()):
        divisor = st.one_of(st.integers(1, 5), st.integers(1, 2**63 - 1))
        ops.append({"op": draw(st.sampled_from(["floor_divide", "modulo"])), "divisor": draw(divisor)})
    if kind == "int64" and draw(st.booleans()):
        unit, offset = draw(st.sampled_from(["s", "ms", "us", "ns"])), draw(st.integers(-1440, 1440))
        ops.append({"op": draw(st.sampled_from(["hour", "weekday"])), "unit": unit, "utc_offset_minutes": offset})
    if not weighted and draw(st.integers(0, 3)) == 0:
        filler = {"bytes": st.text(max_size=5), "int64": INTS, "float": st.floats(-1e3, 1e3)}[kind]
        ops.append({"op": "fill", "value": draw(filler)})
    if not weighted and kind == "bytes" and draw(st.booleans()):
        ops.append({"op": "split", "delimiter": draw(st.sampled_from(["a", "12", "|"]))})
        fixed = False
    if fixed and not weighted and draw(st.integers(0, 3)) == 0:
        ops.append({"op": "is_null"})
        kind = "int64"
    if kind != "bytes" and draw(st.booleans()):
        choice = draw(st.sampled_from(["log", "clip", "affine", "standardise"]))
        number = st.floats(-1e3, 1e3)
        low, high = sorted([draw(number), draw(number)])
        ops.append(
            {
                "log": {"op": "log"},
                "clip": without_none({"op": "clip", "min": low, "max": draw(st.sampled_from([None, high]))}),
                "affine": {"op": "affine", "scale": low, "shift": high},
                "standardise": {"op": "standardise", "mean": low, "std": abs(high) + 0.5},
            }[choice]
        )
        kind = "float"
    if output == "ids" and kind == "float":
        boundaries = sorted(set(draw(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=4))))
        ops.append({"op": "bucketise", "boundaries": boundaries})
        kind = "int64"
    if kind == "bytes" and draw(st.booleans()):
        values = draw(st.lists(st.sampled_from(["", "a", "12345678", "z"]), min_size=1, unique=True))
        ops.append({"op": "vocabulary", "values": values, "unknown": draw(st.one_of(st.just("absent"), INTS))})
        kind = "int64"
    if output == "ids" and (kind == "bytes" or draw(st.booleans())):
        salt = draw(st.text(max_size=9))
        ops.append(without_none({"op": "hash", "seed": draw(SEEDS), "salt": salt, "buckets": draw(BUCKETS)}))
    if draw(st.booleans()) or (output == "dense" and not fixed):
        length = draw(st.integers(1, 4))
        ops.append({"op": "truncate", "length": length, "keep": draw(st.sampled_from(["first", "last"]))})
        if not weighted and (not fixed or draw(st.booleans())):
            ops.append({"op": "pad", "length": length, "value": draw(st.integers(-5, 5))})
    return ops


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any], int]:
    batch = draw(st.integers(1, 5))
    inputs: list[dict[str, Any]] = []
    features: list[dict[str, Any]] = []
    for place in range(draw(st.integers(1, 3))):
        entry = draw(input_entries(f"in{place}"))
        inputs.append(entry)
        output = "ids" if entry["dtype"] == "BYTES" else draw(st.sampled_from(["ids", "dense"]))
        feature = {
            "name": f"f{place}",
            "inputs": [entry["name"]],
            "output": output,
            "transforms": draw(pipelines(entry, output)),
        }
        if output == "ids":
            feature |= {"table": "t"} | draw(st.sampled_from([{}, {"pooling": "none", "length": 2}]))
        else:
            feature["group"] = draw(st.sampled_from(["dense", "other"]))
        features.append(feature)
    if draw(st.booleans()):
        parts = [
            draw(input_entries(f"x{place}", ["INT64", "BYTES", "UINT64"])) for place in range(draw(st.integers(2, 3)))
        ]
        inputs += parts
        cross = without_none({"op": "cross", "seed": draw(SEEDS), "buckets": draw(BUCKETS), "max": 216})
        names = [part["name"] for part in parts]
        features.append({"name": "cross", "inputs": names, "output": "ids", "table": "t", "transforms": [cross]})
    rows = {entry["name"]: draw(rows_of(entry, batch)) for entry in inputs}
    if draw(st.booleans()):
        rows |= draw(weighted_parts(inputs, features, batch))
    return {"inputs": inputs, "features": features}, {k: v for k, v in rows.items() if v is not None}, batch


@st.composite
def weighted_parts(
    draw: st.DrawFn, inputs: list[dict[str, Any]], features: list[dict[str, Any]], batch: int
) -> dict[str, Any]:
    """Adds an input of ids, one of their weights and a feature of both; returns their rows."""
    entry = draw(input_entries("ids", ["INT64", "BYTES", "UINT64"])) | {"missing": "error"}
    ops = draw(pipelines(entry, "ids", weighted=True))
    weights = {"name": "weights", "dtype": "FP32", "kind": entry["kind"], "side": entry["side"]}
    weights |= {key: entry[key] for key in ("width", "max_length") if key in entry}
    inputs += [entry, weights]
    features.append(
        {
            "name": "weighted",
            "inputs": ["ids"],
            "output": "ids",
            "table": "t",
            "pooling": "weighted",
            "weights": "weights",
            "transforms": ops,
        }
    )
    rows = draw(rows_of(entry, batch))
    assert rows is not None
    given = []
    for row in range(len(rows)):
        values = reference.row_values(entry, rows, row)
        drawn = [draw(st.floats(-8, 8, width=32)) for _ in values]
        given.append(drawn if entry["kind"] == "list" or entry["width"] > 1 else drawn[0])
    return {"ids": rows, "weights": given}


@settings(
    max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(cases())
def test_both_engines_agree(case: tuple[dict[str, Any], dict[str, Any], int]) -> None:
    data, rows, batch = case
    spec = FeatureSpec.parse(data)
    columns = {name: column_from_rows(spec.input(name), values) for name, values in rows.items()}
    result = FeatureEngine(spec).run(columns, batch)
    dense, ids = reference.run_reference(data, as_stored(data, rows), batch)
    assert result.ids.keys() == ids.keys()
    for name, expected in ids.items():
        jagged = result.ids[name]
        pairs = jagged.values.tolist()
        if name == "weighted":
            assert jagged.weights is not None
            assert jagged.weights.dtype == np.float32
            pairs = list(zip(pairs, jagged.weights.tolist(), strict=True))
        ours = [pairs[a:b] for a, b in zip(jagged.offsets, jagged.offsets[1:], strict=False)]
        assert ours == expected, name
    assert result.dense.keys() == dense.keys()
    for group, expected in dense.items():
        assert result.dense[group].dtype == np.float32
        # log1p of two libraries may differ in the last bit of a double, which rarely moves the float32
        np.testing.assert_allclose(result.dense[group], np.array(expected, dtype=np.float32), rtol=1.2e-7, atol=0)


def as_stored(data: dict[str, Any], rows: dict[str, Any]) -> dict[str, Any]:
    """Returns rows with FP32 values rounded as the column holds them."""
    single = {entry["name"] for entry in data["inputs"] if entry["dtype"] == "FP32"}

    def rounded(value: Any) -> Any:
        if isinstance(value, list):
            return [rounded(entry) for entry in value]
        return value if value is None else float(np.float32(value))

    return {name: [rounded(row) for row in column] if name in single else column for name, column in rows.items()}


@pytest.mark.parametrize("value", [0, 1, -1, 2**63 - 1, -(2**63)])
def test_the_hash_of_integers_is_the_documented_one(value: int) -> None:
    expected = reference.to_id(reference.hash_value(value, reference.hash_key(7, "user")), None)
    assert hashed("INT64", [value], {"seed": 7, "salt": "user"}) == [expected]


def test_the_hash_of_known_values_never_changes() -> None:
    """Asserts values on which published versions depend: they may never change."""
    assert hashed("INT64", [0, 1, -1], {}) == KNOWN_INTS
    assert hashed("BYTES", [b"", b"a", b"12345678", b"123456789"], {"seed": 1, "salt": "s"}) == KNOWN_BYTES
    assert hashed("BYTES", [b"a", b"b"], {"buckets": 1000}) == KNOWN_BUCKETS


def hashed(dtype: str, values: list[Any], options: dict[str, Any]) -> list[int]:
    spec = FeatureSpec.parse(
        {
            "inputs": [{"name": "x", "dtype": dtype}],
            "features": [
                {"name": "f", "inputs": ["x"], "output": "ids", "table": "t", "transforms": [{"op": "hash", **options}]}
            ],
        }
    )
    column = column_from_rows(spec.input("x"), values)
    found: list[int] = FeatureEngine(spec).run({"x": column}, len(values)).ids["f"].values.tolist()
    return found


def test_the_hash_spreads_every_bit() -> None:
    """Flipping one bit of an id flips each bit of its hash about half of the time."""
    ids = np.arange(2000, dtype=np.int64) * 7919
    base = np.array(hashed("INT64", ids.tolist(), {}), dtype=np.uint64)
    for bit in (0, 1, 17, 40, 62):
        other = np.array(hashed("INT64", (ids ^ (1 << bit)).tolist(), {}), dtype=np.uint64)
        flips = np.unpackbits((base ^ other).view(np.uint8)).reshape(-1, 64).mean(axis=0)
        flips = np.sort(flips)[1:]  # the sign bit is always 0
        assert flips.min() > 0.44
        assert flips.max() < 0.56


def test_buckets_are_filled_evenly() -> None:
    values = hashed("INT64", list(range(100_000)), {"buckets": 10})
    counts = np.bincount(values, minlength=10)
    assert len(counts) == 10
    assert np.all(np.abs(counts - 10_000) < 500)


def test_salts_give_unrelated_ids() -> None:
    values = list(range(1000))
    one, two = (hashed("INT64", values, {"salt": salt, "buckets": 1000}) for salt in ("a", "b"))
    assert sum(a == b for a, b in zip(one, two, strict=True)) < 20


def test_a_cross_above_its_max_is_refused_with_its_row() -> None:
    spec = FeatureSpec.parse(
        {
            "inputs": [{"name": n, "dtype": "INT64", "kind": "list"} for n in ("a", "b")],
            "features": [
                {
                    "name": "x",
                    "inputs": ["a", "b"],
                    "output": "ids",
                    "table": "t",
                    "transforms": [{"op": "cross", "max": 6}],
                }
            ],
        }
    )
    engine = FeatureEngine(spec)
    columns = {
        "a": column_from_lists("INT64", [[1, 2], [1, 2, 3]]),
        "b": column_from_lists("INT64", [[1, 2, 3], [1, 2, 3]]),
    }
    with pytest.raises(InvalidInput, match=r"row 1: the cross of 'a' x 'b' has more than 6") as caught:
        engine.run(columns, 2)
    assert caught.value.field == "a"
    columns["b"] = column_from_lists("INT64", [[1, 2, 3], []])
    assert engine.run(columns, 2).ids["x"].lengths().tolist() == [6, 0]
