"""A slow request is one line of the log, whatever its client calls it."""

from __future__ import annotations

import io
import json
import logging

import pytest

from serving._front import Observer
from serving.observing.logs import ConsoleFormatter, JsonFormatter
from serving.observing.slow_requests import SlowRequests
from tests.support.observer_notes import note, settings

FORGED = "7\n2026-11-28 09:30:00,000 CRITICAL emberline.serving: the disk is on fire\x1b[2J\u2028\x85"


@pytest.mark.parametrize("formatter", [ConsoleFormatter(), JsonFormatter()])
def test_an_id_cannot_begin_a_line_of_its_own(formatter: logging.Formatter) -> None:
    observer = Observer(0, 10)
    observer.set(**settings(keeps_all=True))
    note(observer, id=FORGED, model="m", error='a b="c"')
    (kept,) = observer.take(0.0)[1]
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    logger = logging.getLogger("emberline.slow")
    logger.addHandler(handler)
    try:
        SlowRequests().write(kept)
    finally:
        logger.removeHandler(handler)
    (line,) = stream.getvalue().removesuffix("\n").split("\n")
    assert "\x1b" not in line
    if isinstance(formatter, JsonFormatter):
        assert json.loads(line)["id"] == FORGED
    else:
        assert 'error="a b=\\"c\\""' in line
        assert " model=m " in line
