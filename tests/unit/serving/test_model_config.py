from __future__ import annotations

from pathlib import Path

import pytest

from serving.model_config.pbtxt import ModelConfig, complete_model_config, read_model_config
from serving.model_config.queue_settings import LevelSettings
from serving.protocol.proto_json import message_to_json
from serving.protocol.signature import ModelSignature
from storage.errors import ConfigError


def read(folder: Path, text: str) -> ModelConfig:
    model = folder / "ranker"
    model.mkdir(exist_ok=True)
    (model / "config.pbtxt").write_text(text)
    return read_model_config(model)


def test_a_model_without_a_file_has_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "ranker").mkdir()
    config = read_model_config(tmp_path / "ranker")
    assert (config.name, config.sessions, config.queue.merge, config.queue.max_size) == ("ranker", 1, False, 256)
    assert config.choose_versions([1, 10, 9]) == [10]


def test_every_supported_field_is_read(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        """
        name: "ranker" backend: "emberline" max_batch_size: 512
        version_policy { latest { num_versions: 2 } }
        instance_group [ { count: 3 kind: KIND_CPU }, { kind: KIND_AUTO } ]
        dynamic_batching {
          preferred_batch_size: [ 64, 8 ] max_queue_delay_microseconds: 500
          default_queue_policy { max_queue_size: 9 default_timeout_microseconds: 700000 }
        }
        parameters { key: "dram_bytes" value { string_value: "512MiB" } }
        parameters { key: "timeout_ms" value { string_value: "250" } }
        parameters { key: "torch_threads" value { string_value: "2" } }
        """,
    )
    assert (config.max_batch_size, config.sessions) == (512, 4)
    assert config.queue.preferred == (8, 64)
    assert (config.queue.delay_us, config.queue.levels) == (500, (LevelSettings(9, 250_000),))
    assert (config.options.dram_bytes, config.options.torch_threads) == (512 << 20, 2)
    assert config.choose_versions([3, 1, 2]) == [2, 3]


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("max_batch_size: -1", "max_batch_size"),
        ('name: "other"', "name"),
        ('backend: "onnxruntime"', "backend"),
        ("nonsense: 1", "config.pbtxt"),
        ("sequence_batching { }", "sequence_batching"),
        ("response_cache { enable: true }", "response_cache"),
        ("instance_group { count: -2 }", "instance_group[0].count"),
        ("instance_group { kind: KIND_CPU gpus: 1 }", "instance_group[0].gpus"),
        ("dynamic_batching { priority_levels: 2 }", "dynamic_batching.default_priority_level"),
        ("dynamic_batching { priority_levels: 65 }", "dynamic_batching.priority_levels"),
        (
            "dynamic_batching { priority_levels: 2 default_priority_level: 3 }",
            "dynamic_batching.default_priority_level",
        ),
        ("dynamic_batching { default_priority_level: 1 }", "dynamic_batching.default_priority_level"),
        (
            "dynamic_batching { priority_queue_policy { key: 1 value { max_queue_size: 4 } } }",
            "dynamic_batching.priority_queue_policy[1]",
        ),
        ("dynamic_batching { preserve_ordering: true }", "dynamic_batching.preserve_ordering"),
        ("dynamic_batching { preferred_batch_size: 0 }", "dynamic_batching.preferred_batch_size"),
        ("max_batch_size: 4 dynamic_batching { preferred_batch_size: 8 }", "dynamic_batching.preferred_batch_size"),
        ('parameters { key: "dram_byte" value { string_value: "1" } }', "parameters.dram_byte"),
        ('parameters { key: "dram_bytes" value { string_value: "1 potato" } }', "parameters.dram_bytes"),
        ('parameters { key: "torch_threads" value { string_value: "0" } }', "parameters.torch_threads"),
        ('parameters { key: "cpus" value { string_value: "3-1" } }', "parameters.cpus"),
        ('parameters { key: "cpus" value { string_value: "9999" } }', "parameters.cpus"),
        ('parameters { key: "pick" value { string_value: "best" } }', "parameters.pick"),
        ('parameters { key: "share" value { string_value: "0" } }', "parameters.share"),
        ('parameters { key: "ready_when" value { string_value: "hot" } }', "parameters.ready_when"),
        ('parameters { key: "ready_when" value { string_value: "95" } }', "parameters.ready_when"),
        ('parameters { key: "ready_when" value { string_value: "nan" } }', "parameters.ready_when"),
        ("input { reshape { shape: 1 } }", "input[0].reshape"),
    ],
)
def test_what_cannot_be_done_is_refused_by_field(tmp_path: Path, text: str, field: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, text)
    assert raised.value.field == field
    assert "config.pbtxt" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('backend: "onnxruntime"', "backend: is 'onnxruntime', expected 'emberline', 'identity' or nothing"),
        ('backend: "python"', "backend: is 'python', expected"),
        ('platform: "tensorflow_savedmodel"', "platform: is 'tensorflow_savedmodel', expected 'emberline' or nothing"),
        (
            'platform: "onnxruntime_onnx" default_model_filename: "m.onnx" ensemble_scheduling { }',
            "platform: is 'onnxruntime_onnx'",
        ),
    ],
)
def test_a_configuration_of_another_backend_says_what_is_served_here(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, text)
    assert said in str(raised.value)
    assert "this server runs versions that emberline.publish or the trainer wrote, and no TensorFlow, ONNX" in str(
        raised.value
    )


def test_a_model_is_ready_when_it_is_loaded_or_warm_or_has_a_hit_rate(tmp_path: Path) -> None:
    assert read(tmp_path, "").options.ready_when == "loaded"
    for text, value in (("warm", "warm"), ("0.95", 0.95), ("1", 1.0)):
        option = f'parameters {{ key: "ready_when" value {{ string_value: "{text}" }} }}'
        assert read(tmp_path, option).options.ready_when == value


def test_priority_levels_have_policies_of_their_own_or_the_default_one(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        """
        dynamic_batching {
          priority_levels: 3 default_priority_level: 2
          default_queue_policy { max_queue_size: 50 default_timeout_microseconds: 7000 timeout_action: DELAY }
          priority_queue_policy { key: 1 value { max_queue_size: 9 } }
        }
        parameters { key: "max_wait_ms" value { string_value: "40" } }
        """,
    )
    default = LevelSettings(50, 7000, delays=True)
    assert config.queue.levels == (LevelSettings(9), default, default)
    assert (config.queue.default_level, config.queue.max_size, config.queue.max_wait_us) == (2, 109, 40_000)


def test_sessions_may_be_bound_to_processors_and_picked_otherwise(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        """
        parameters { key: "cpus" value { string_value: "0" } }
        parameters { key: "pick" value { string_value: "key" } }
        parameters { key: "share" value { string_value: "2.5" } }
        """,
    )
    assert (config.options.cpus, config.options.pick, config.options.share) == (frozenset({0}), "key", 2.5)


def test_an_unknown_option_is_answered_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'dram_bytes'"):
        read(tmp_path, 'parameters { key: "dram_byte" value { string_value: "1" } }')


def test_specific_versions_must_be_there(tmp_path: Path) -> None:
    config = read(tmp_path, "version_policy { specific { versions: 4 } }")
    assert config.choose_versions([4, 5]) == [4]
    with pytest.raises(ConfigError, match="version 4"):
        config.choose_versions([5])


def test_what_the_file_left_out_comes_from_the_version(tmp_path: Path, signature: ModelSignature) -> None:
    complete = message_to_json(complete_model_config(read(tmp_path, "max_batch_size: 8"), signature))
    names = [entry["name"] for entry in complete["input"]]
    assert names[:5] == ["user", "user.valid", "item", "item.valid", "history"]
    assert complete["input"][4]["dims"] == [-1]
    assert complete["input"][4]["optional"] is True
    assert complete["output"][0]["dims"] == [1]
    assert complete["max_batch_size"] == 8


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('input { name: "itme" data_type: TYPE_INT64 dims: 1 }', "'itme' is no input"),
        ('input { name: "item" data_type: TYPE_FP32 dims: 1 }', "'item' is FP32"),
        ('input { name: "item" data_type: TYPE_INT64 dims: 2 }', "'item' is INT64"),
        ('input { name: "item" data_type: TYPE_INT64 dims: 1 }', "'user' is not listed"),
        ('output { name: "score" data_type: TYPE_FP32 dims: 1 }', "the version has"),
    ],
)
def test_inputs_and_outputs_must_be_the_versions_own(
    tmp_path: Path, signature: ModelSignature, text: str, expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        complete_model_config(read(tmp_path, text), signature)


def test_options_of_updates_and_of_the_live_guard_have_defaults_and_are_read(tmp_path: Path) -> None:
    options = read(tmp_path, "").options
    assert (options.updates, options.retain_snapshots, options.overlay_bytes) == (True, 4, 256 << 20)
    assert (options.live_guard, options.live_guard_requests, options.min_snapshot_timeout_ms) == (True, 256, 5000)
    given = {"updates": "false", "overlay_bytes": "1GiB", "live_guard_max_psi": "0.25", "version_reuse_share": "0"}
    text = "".join(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in given.items())
    options = read(tmp_path, text).options
    assert (options.updates, options.overlay_bytes) == (False, 1 << 30)
    assert (options.live_guard_max_psi, options.version_reuse_share) == (0.25, 0.0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("retain_snapshots", "0"),
        ("retain_snapshots", "60"),
        ("live_guard_max_psi", "nan"),
        ("live_guard_max_mean_shift", "inf"),
        ("live_guard_min_correlation", "1.5"),
        ("min_snapshot_timeout_ms", "-1"),
        ("version_reuse_share", "2"),
        ("live_guard", "perhaps"),
    ],
)
def test_a_value_outside_its_range_is_refused_by_name(tmp_path: Path, key: str, value: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}')
    assert raised.value.field == f"parameters.{key}"


def test_a_number_that_no_field_holds_is_refused_and_not_raised_on(tmp_path: Path) -> None:
    # An enum's field raises another error for it than the others do.
    with pytest.raises(ConfigError, match="out of range"):
        read(tmp_path, f"instance_group {{ kind: -{10**30} }}")
