"""Triton's trace and log settings say what is in force, and change what can be changed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.config import ServerConfig
from serving.control.observing_settings import change_log, change_traces, log_settings, trace_settings
from serving.observing.observation import Observation
from storage.errors import EmberlineError, InvalidInput, Unsupported

NAME = "emberline.test_settings"


@pytest.fixture
def observation(tmp_path: Path) -> Iterator[Observation]:
    # Nothing listens there: nothing is sent before a request is traced.
    made = Observation(ServerConfig(model_repository=tmp_path, trace_otlp="http://127.0.0.1:1", trace_sampling=0.01))
    made.start()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.INFO)
    logging.getLogger(NAME)
    yield
    root.setLevel(before)
    logging.getLogger(NAME).setLevel(logging.NOTSET)


def test_traces_are_turned_on_and_off_and_drawn_more_often(observation: Observation) -> None:
    said = trace_settings(observation)
    assert (said["trace_level"], said["trace_rate"], said["trace_mode"]) == (["TIMESTAMPS"], "100", "opentelemetry")
    change_traces(observation, said, of_model=False)
    change_traces(observation, said, of_model=True)
    assert observation.sampling.share == 0.01
    change_traces(observation, {"trace_rate": "4"}, of_model=False)
    assert observation.sampling.share == 0.25
    change_traces(observation, {"trace_rate": 0, "trace_level": "OFF"}, of_model=False)
    assert trace_settings(observation) | {"trace_level": 0} == {**said, "trace_rate": "0", "trace_level": 0}
    assert not observation.native.is_on
    change_traces(observation, {"trace_rate": None, "trace_level": []}, of_model=False)
    assert trace_settings(observation) == said
    assert observation.native.is_on


@pytest.mark.parametrize(
    ("wanted", "kind", "text"),
    [
        ({"trace_level": ["TENSORS"]}, Unsupported, "contents of tensors"),
        ({"trace_rate": "-1"}, InvalidInput, "whole number"),
        ({"trace_rate": "1.5"}, InvalidInput, "whole number"),
        ({"trace_rate": "²"}, InvalidInput, "whole number"),
        ({"trace_rate": ["1", "2"]}, InvalidInput, "whole number"),
        ({"trace_file": "/tmp/a"}, Unsupported, "trace_file stays ''"),
        ({"trace_count": "5"}, Unsupported, "trace_count stays '-1'"),
        ({"trace_colour": "5"}, InvalidInput, "unknown trace setting 'trace_colour'"),
    ],
)
def test_other_trace_settings_are_refused(
    observation: Observation, wanted: dict[str, Any], kind: type[EmberlineError], text: str
) -> None:
    before = trace_settings(observation)
    with pytest.raises(kind, match=text):
        change_traces(observation, wanted, of_model=False)
    assert trace_settings(observation) == before


def test_a_model_has_no_trace_settings_of_its_own(observation: Observation) -> None:
    with pytest.raises(Unsupported, match="whole server"):
        change_traces(observation, {"trace_rate": "4"}, of_model=True)


def test_without_a_collector_traces_cannot_be_turned_on(tmp_path: Path) -> None:
    observation = Observation(ServerConfig(model_repository=tmp_path))
    observation.start()
    assert trace_settings(observation)["trace_level"] == ["OFF"]
    change_traces(observation, {"trace_level": ["OFF"]}, of_model=False)
    with pytest.raises(Unsupported, match="--trace-otlp"):
        change_traces(observation, {"trace_level": ["TIMESTAMPS"]}, of_model=False)
    assert not observation.native.is_on
    observation.close()


def test_severities_and_levels_of_loggers_change() -> None:
    said = log_settings("console")
    assert {key: said[key] for key in said if not key.startswith("log_level.")} == {
        "log_file": "",
        "log_info": True,
        "log_warning": True,
        "log_error": True,
        "log_verbose_level": 0,
        "log_format": "default",
    }
    assert said["log_level.root"] == "info"
    change_log("console", said)
    change_log("console", {"log_verbose_level": 1})
    assert log_settings("json") | {"log_level.root": ""} == log_settings("json") | {"log_level.root": ""}
    assert logging.getLogger().level == logging.DEBUG
    change_log("console", {"log_verbose_level": 0, "log_info": False})
    assert logging.getLogger().level == logging.WARNING
    change_log("console", {"log_warning": False, "log_error": False})
    assert logging.getLogger().level == logging.CRITICAL
    change_log("console", {f"log_level.{NAME}": "debug"})
    assert log_settings("console")[f"log_level.{NAME}"] == "debug"
    change_log("console", {f"log_level.{NAME}": "default", "log_level.root": "error"})
    assert f"log_level.{NAME}" not in log_settings("console")
    assert logging.getLogger().level == logging.ERROR


@pytest.mark.parametrize(
    ("wanted", "kind", "text"),
    [
        ({"log_file": "/tmp/a"}, Unsupported, "log_file stays ''"),
        ({"log_format": "ISO8601"}, Unsupported, "log_format stays 'default'"),
        ({"log_warning": False}, Unsupported, "with all above it"),
        ({"log_info": "yes"}, InvalidInput, "of the type of True"),
        ({"log_level.root": "default"}, InvalidInput, "expected debug"),
        ({"log_level.root": 3}, InvalidInput, "expected debug"),
        ({f"log_level.{NAME}": "loud"}, InvalidInput, "or default"),
        ({"log_level.nobody.has.this": "debug"}, InvalidInput, "no logger of this name"),
        ({"log_colour": True}, InvalidInput, "unknown log setting"),
    ],
)
def test_other_log_settings_are_refused(wanted: dict[str, Any], kind: type[EmberlineError], text: str) -> None:
    before = log_settings("console")
    with pytest.raises(kind, match=text):
        change_log("console", wanted)
    assert log_settings("console") == before
    assert not logs_has("nobody.has.this")


def logs_has(name: str) -> bool:
    return name in logging.Logger.manager.loggerDict
