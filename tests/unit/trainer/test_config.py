"""The configuration file: what is refused, and how the refusal names the place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from storage.errors import ConfigError
from trainer.config import load_config, parse_text
from trainer.label_config import LabelConfig
from trainer.settings import settings_of

GOOD = """
model_name: shop
label: clicked
inputs:
  - {name: user, dtype: INT64}
  - {name: age, dtype: FP32}
features:
  - {name: user, inputs: [user], output: ids, table: users}
  - {name: age, inputs: [age], transforms: [{op: log}], output: dense}
tables: [{name: users, dim: 4}]
model: {type: deepfm, hidden: [8]}
"""


def test_defaults_are_filled_in() -> None:
    config = parse_text(GOOD)
    assert config.training.batch_size == 512
    assert config.optimizer.sparse.type == "adagrad"
    assert config.spec.dense_groups == {"dense": 1}


@pytest.mark.parametrize(
    ("old", "new", "field", "words"),
    [
        ("hidden", "hiden", "model.hiden", "did you mean 'hidden'"),
        ("label: clicked", "lable: clicked", "lable", "did you mean 'label'"),
        ("dim: 4", "dim: 4, admit: 3", "tables.0.admit", "did you mean 'admit_after'"),
        ("dim: 4", "dim: yes", "tables.0.dim", "expected a number, got true (in YAML also yes"),
        ("model: {", "training: {epochs: on}\nmodel: {", "training.epochs", "expected a number, got true"),
        ("dim: 4", "dim: four", "tables.0.dim", "got 'four'"),
        ("hidden: [8]", "hidden: [8, 0]", "model.hidden.1", "greater than or equal to 1"),
        ("dtype: FP32", "dtype: FP31", "inputs.1.dtype", "'FP32'"),
        ("{op: log}", "{op: lag}", "features.1.transforms.0", "did you mean 'log'"),
        ("table: users", "table: user", "", "did you mean 'users'"),
        ("type: deepfm", "type: deepfn", "model.type", "'deepfm'"),
        ("name: users, dim", "name: 'users/..', dim", "tables.name", "rename the table"),
        ("dim: 4", "dim: 4, expire_after: 3", "tables.0.expire_after", "did you mean 'expire_after_publishes'"),
        ("model: {", "publish: {delta_every: 3}\nmodel: {", "publish.delta_every", "did you mean 'delta_every_"),
        ("model: {", "publish: {delta_every_rows: -1}\nmodel: {", "publish.delta_every_rows", "greater than or equal"),
        ("model: {", "publish: {keep_versions: 0}\nmodel: {", "publish.keep_versions", "greater than or equal to 1"),
        ("model_name: shop\n", "", "model_name", "missing"),
        ("label: clicked", "label: clicked\nlabel: other", "", "stands twice"),
        (
            "[{name: users, dim: 4}]",
            "[{name: users, dim: 4}, {name: idle, dim: 4}]",
            "",
            "'idle' is used by no feature",
        ),
    ],
)
def test_a_wrong_entry_is_named_with_its_path(old: str, new: str, field: str, words: str) -> None:
    assert GOOD.count(old) >= 1
    with pytest.raises(ConfigError) as caught:
        parse_text(GOOD.replace(old, new, 1))
    assert caught.value.field == field
    assert words in str(caught.value)


# Where a configuration holds a name of ours, and one of the names that it may hold.
NAMED = {
    "optimizer.sparse.type": "'rowwise_adam'",
    "optimizer.dense.type": "'AdamW'",
    "optimizer.schedule.type": "'cosine'",
    "model.type": "'deepfm'",
    "tables.0.kind": "'quotient_remainder'",
    "tables.0.admission.type": "'bloom'",
    "tables.0.init.type": "'uniform'",
    "tables.0.absent.type": "'uniform'",
    "tables.1.combine": "'concat'",
    "features.0.output": "'dense'",
    "features.0.pooling": "'mean'",
    "inputs.0.dtype": "'INT64'",
    "inputs.0.kind": "'list'",
    "inputs.0.side": "'user'",
    "inputs.0.missing": "'null'",
    "publish.row_types.users": "'bf16'",
}
MANY = """
model_name: shop
label: clicked
inputs:
  - {name: user, dtype: INT64}
  - {name: age, dtype: FP32}
features:
  - {name: user, inputs: [user], output: ids, table: users}
  - {name: age, inputs: [age], transforms: [{op: log}], output: dense}
  - {name: again, inputs: [user], output: ids, table: shared}
tables:
  - {name: users, dim: 4, admission: {type: counter}, init: {type: zeros}, absent: {type: zeros}}
  - {name: shared, kind: multi_hash, dim: 4, buckets: 9, combine: add}
model: {type: dlrm}
optimizer: {sparse: {type: adam}, dense: {type: Adam}, schedule: {type: constant}}
publish: {row_types: {users: fp16}}
"""


def with_value(field: str, value: object) -> str:
    """Returns MANY with another value in the place of a dotted path."""
    content: Any = yaml.safe_load(MANY)
    *path, last = (int(part) if part.isdecimal() else part for part in field.split("."))
    here = content
    for part in path:
        here = here[part]
    here[last] = value
    return yaml.safe_dump(content)


@pytest.mark.parametrize("value", [["adam"], {"adam": 1}, 3, None, True], ids=["list", "map", "number", "null", "bool"])
@pytest.mark.parametrize("field", NAMED)
def test_something_else_in_the_place_of_a_name_is_refused_with_the_names(field: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_text(with_value(field, value))
    assert caught.value.field == field
    shown = {list: "a list", dict: "a mapping", int: "3", type(None): "null", bool: "True"}[type(value)]
    assert NAMED[field] in str(caught.value)
    assert str(caught.value).endswith(f"got {shown}")


@pytest.mark.parametrize("value", [["log"], {"log": 1}, 3, None, True], ids=["list", "map", "number", "null", "bool"])
def test_something_else_in_the_place_of_an_op_is_refused_with_the_ops(value: object) -> None:
    with pytest.raises(ConfigError, match=r"unknown op .*(known are: add|did you mean .log)") as caught:
        parse_text(with_value("features.1.transforms.0.op", value))
    assert caught.value.field == "features.1.transforms.0"


@pytest.mark.parametrize("value", [["adam"], 3, None, True], ids=["list", "number", "null", "bool"])
@pytest.mark.parametrize(
    "field",
    ["optimizer", "optimizer.sparse", "optimizer.dense", "model", "tables.0", "tables.0.admission", "tables.0.init"],
)
def test_something_else_in_the_place_of_a_mapping_is_refused(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match="expected a mapping of names to values, got") as caught:
        parse_text(with_value(field, value))
    assert caught.value.field == field


def test_a_mapping_that_needs_to_say_its_type_is_refused_without_it() -> None:
    with pytest.raises(ConfigError, match=r"model\.type: missing") as caught:
        parse_text(with_value("model", {"top": [8]}))
    assert caught.value.field == "model.type"
    assert parse_text(with_value("optimizer.sparse", {"lr": 0.5})).optimizer.sparse.type == "adagrad"
    assert parse_text(with_value("tables.0.admission", {})).row_tables[0].rows.name == "users"


@pytest.mark.parametrize("key", ["momentum", "lr"])
def test_an_option_called_as_its_type_is_named_once(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_text(with_value("optimizer.sparse", {"type": "momentum", "momentum": 0.5, key: "fast"}))
    assert caught.value.field == f"optimizer.sparse.{key}"


def test_a_refused_entry_is_not_also_counted_as_missing() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_text(GOOD.replace("dim: 4", "dim: four"))
    assert "at least 1 item" not in str(caught.value)


def test_the_file_is_named_when_it_cannot_be_read(tmp_path: pytest.TempPathFactory) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml"):
        load_config(f"{tmp_path}/absent.yaml")


def test_yaml_tags_that_build_objects_are_refused() -> None:
    with pytest.raises(ConfigError, match="not YAML"):
        parse_text(GOOD + "publish: !!python/object/apply:os.system ['true']\n")


def test_the_settings_of_a_run_leave_out_what_a_resumed_run_may_change() -> None:
    longer = parse_text(GOOD + "training: {epochs: 9}\npublish: {tolerance: 1e-5, delta_every_rows: 9}\n")
    other = parse_text(GOOD + "training: {seed: 9}\n")
    leaving = parse_text(GOOD.replace("dim: 4", "dim: 4, expire_after_publishes: 3"))
    assert settings_of(longer) == settings_of(parse_text(GOOD))
    assert settings_of(other) != settings_of(parse_text(GOOD))
    assert settings_of(leaving) != settings_of(parse_text(GOOD))


def test_a_number_with_an_exponent_and_no_dot_is_a_number_and_a_run_reads_what_it_wrote(tmp_path: Path) -> None:
    text = GOOD.replace("{op: log}", "{op: affine, scale: 1e-15}")
    config = parse_text(text)
    (tmp_path / "config.json").write_text(config.model_dump_json())
    assert "1e-15" in (tmp_path / "config.json").read_text()
    assert load_config(tmp_path / "config.json") == config
    with pytest.raises(ConfigError, match="expected a number, got '1e-15'"):
        parse_text(text.replace("1e-15", "'1e-15'"))


def test_a_copy_with_other_values_derives_nothing_from_the_old_ones() -> None:
    config = parse_text(GOOD)
    assert config.targets.tasks[0].label.column == "clicked"
    assert config.spec.features
    other = config.model_copy(update={"label": LabelConfig(column="bought"), "features": config.features[:1]})
    assert other.targets.tasks[0].label.column == "bought"
    assert len(other.spec.features) == 1
