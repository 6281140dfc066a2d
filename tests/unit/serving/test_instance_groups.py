"""Tests on which devices sessions run: instance groups on machines with and without GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from serving.gpu.driver import Driver, GpuInfo
from serving.model_config.instance_groups import InstanceGroup, place_sessions, share
from serving.model_config.pbtxt import ModelConfig, complete_model_config, read_model_config
from serving.protocol.signature import ModelSignature, OutputSignature
from storage.errors import ConfigError


@dataclass
class Gpus:
    """Stands in for GPUs that are not used."""

    count: int = 0
    why_none: str = ""
    infos: Sequence[GpuInfo] = field(init=False)

    def __post_init__(self) -> None:
        self.why_none = self.why_none or ("" if self.count else "torch is built without CUDA")
        self.infos = [GpuInfo(index, "gpu", (9, 0), 1 << 30) for index in range(self.count)]

    def driver(self, index: int) -> Driver:
        raise AssertionError(index)


def config_of(tmp_path: Path, text: str) -> ModelConfig:
    folder = tmp_path / "ranker"
    folder.mkdir(exist_ok=True)
    (folder / "config.pbtxt").write_text(text)
    return read_model_config(folder)


@pytest.mark.parametrize(
    ("text", "gpus", "places"),
    [
        ("", 0, (None,)),
        ("", 2, (0, 1)),  # Each GPU gets a replica.
        ("instance_group { count: 2 }", 0, (None, None)),
        ("instance_group { count: 2 }", 2, (0, 0, 1, 1)),
        ("instance_group { count: 2 kind: KIND_CPU }", 2, (None, None)),
        ("instance_group { count: 3 kind: KIND_GPU gpus: 1 }", 2, (1, 1, 1)),
        ("instance_group { kind: KIND_GPU gpus: [1, 0, 1] }", 2, (1, 0)),
        ("instance_group { count: 2 gpus: 5 }", 2, (None, None)),  # The group may run without a GPU.
        ("instance_group { kind: KIND_GPU gpus: 0 } instance_group { kind: KIND_CPU count: 2 }", 1, (0, None, None)),
    ],
)
def test_sessions_are_where_the_groups_say(tmp_path: Path, text: str, gpus: int, places: tuple[int | None]) -> None:
    assert config_of(tmp_path, text).placed(Gpus(gpus)).places == places


@pytest.mark.parametrize(
    ("text", "gpus", "words"),
    [
        ("instance_group { kind: KIND_GPU }", 0, "no GPU can be used: torch is built without CUDA; KIND_AUTO would"),
        ("instance_group { kind: KIND_CPU } instance_group { kind: KIND_GPU }", 0, r"instance_group\[1\].kind"),
        ("instance_group { kind: KIND_GPU gpus: 3 }", 2, r"instance_group\[0\].gpus: names GPU 3; there are 0, 1"),
        ("instance_group { kind: KIND_GPU count: 200 }", 2, "is 400, expected 1 to 256"),
    ],
)
def test_what_is_not_there_is_named(tmp_path: Path, text: str, gpus: int, words: str) -> None:
    config = config_of(tmp_path, text)
    with pytest.raises(ConfigError, match=words):
        config.placed(Gpus(gpus))


def test_gpus_that_cannot_be_used_are_not_there(tmp_path: Path) -> None:
    gpus = Gpus(2, "CuPy is not installed")
    assert config_of(tmp_path, "instance_group { count: 3 }").placed(gpus).places == (None, None, None)
    with pytest.raises(ConfigError, match="no GPU can be used: CuPy is not installed"):
        config_of(tmp_path, "instance_group { kind: KIND_GPU }").placed(gpus)


def test_without_gpus_given_to_the_server_the_reason_is_its_own() -> None:
    with pytest.raises(ConfigError, match="was started without GPUs"):
        place_sessions([InstanceGroup("KIND_GPU")], None)


def test_other_numbers_of_sessions_are_shared_out_alike() -> None:
    assert share((0, 0, 1, 1, None), 7) == [0, 0, 1, 1, None, 0, 0]
    assert share((1,), 3) == [1, 1, 1]


@pytest.mark.parametrize(
    ("text", "falls_back"),
    [
        ("", True),
        ("instance_group { kind: KIND_GPU }", False),
        ('instance_group { kind: KIND_GPU } parameters { key: "on_gpu_failure" value { string_value: "cpu" } }', True),
        ('parameters { key: "on_gpu_failure" value { string_value: "eager" } }', False),
        ('parameters { key: "on_gpu_failure" value { string_value: "refuse" } }', False),
    ],
)
def test_the_processor_stands_in_where_it_may(tmp_path: Path, text: str, falls_back: bool) -> None:
    assert config_of(tmp_path, text).may_use_processor is falls_back


def test_the_reported_configuration_says_what_became_of_it(tmp_path: Path) -> None:
    signature = ModelSignature("ranker", (), [OutputSignature("score", "FP32", ())], 64)

    def group(gpus: Gpus) -> tuple[str, int, list[int]]:
        found = complete_model_config(config_of(tmp_path, "").placed(gpus), signature).instance_group[0]
        return found.Kind.Name(found.kind), found.count, list(found.gpus)

    assert group(Gpus(2)) == ("KIND_GPU", 1, [0, 1])
    assert group(Gpus(0)) == ("KIND_CPU", 1, [])
