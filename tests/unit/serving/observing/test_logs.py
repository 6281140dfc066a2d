"""The log: lines of text or of JSON, levels by logger, and equal warnings that are not repeated without end."""

from __future__ import annotations

import io
import json
import logging
import time
from collections.abc import Iterator

import pytest

from serving.observing import logs
from serving.observing.logs import FIELDS, REPEATS, levels_of, set_levels, set_up_logs
from storage.errors import InvalidInput

NAME = "emberline.test_logs"


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    yield io.StringIO()
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler, logging.StreamHandler) and isinstance(handler.stream, io.StringIO):
            root.removeHandler(handler)
    logging.getLogger(NAME).setLevel(logging.NOTSET)


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    root = logging.getLogger()
    before = root.level
    yield
    root.setLevel(before)


def test_a_line_of_json_has_level_logger_message_and_fields(stream: io.StringIO) -> None:
    set_up_logs({"root": "info"}, "json", stream)
    logger = logging.getLogger(NAME)
    logger.info("%d models\nof %s", 3, "é", extra={FIELDS: {"ms": 1.5, "url": "https://a:geheim@b"}})
    try:
        raise ValueError("password=geheim")
    except ValueError:
        logger.exception("it failed")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "info",
        "logger": NAME,
        "message": "3 models\nof é",
        "ms": 1.5,
        "url": "https://[secret]@b",
    }
    assert second["level"] == "error"
    assert "ValueError: password=[secret]" in second["exception"]
    assert "geheim" not in stream.getvalue()


def test_a_line_of_text_has_no_secret_in_its_traceback_either(stream: io.StringIO) -> None:
    set_up_logs({"root": "info"}, "console", stream)
    try:
        raise ValueError("https://a:geheim@b")
    except ValueError:
        logging.getLogger(NAME).warning("Bearer geheim4geheim", exc_info=True)
    assert "ValueError: https://[secret]@b" in stream.getvalue()
    assert "geheim" not in stream.getvalue()


def test_levels_are_set_by_logger(stream: io.StringIO) -> None:
    set_up_logs(levels_of(("warning", f"{NAME}=debug")), "console", stream)
    logging.getLogger(NAME).debug("of it")
    logging.getLogger(f"{NAME}.below").debug("below it")
    logging.getLogger("emberline.test_other").info("of another")
    assert [line.rpartition(": ")[2] for line in stream.getvalue().splitlines()] == ["of it", "below it"]
    assert set_levels()[NAME] == "debug"
    assert set_levels()["root"] == "warning"


@pytest.mark.parametrize("text", ["loud", "=debug", "a=loud", ""])
def test_a_wrong_level_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"emberline\.storage=debug, got"):
        levels_of((text,))


def test_equal_warnings_are_left_out_until_the_time_is_over(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    set_up_logs({"root": "info"}, "json", stream)
    logger = logging.getLogger(NAME)
    for _ in range(REPEATS + 7):
        logger.warning("the store %s is away", "a")
        logger.info("a turn")
    logger.warning("the store %s is away", "b")
    now += logs.WITHIN_S
    logger.warning("the store %s is away", "a")
    said = [
        entry["message"] for entry in map(json.loads, stream.getvalue().splitlines()) if entry["level"] == "warning"
    ]
    assert said[: REPEATS - 1] == ["the store a is away"] * (REPEATS - 1)
    assert said[REPEATS - 1] == "the store a is away (equal ones are left out for 60 s)"
    assert said[REPEATS:] == ["the store b is away", "the store a is away (left out since: 7 equal ones)"]
    turns = [entry for entry in map(json.loads, stream.getvalue().splitlines()) if entry["message"] == "a turn"]
    assert len(turns) == REPEATS + 7
