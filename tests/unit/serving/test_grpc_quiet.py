"""A caller that has gone away is no error in the log; a mistake in the program is one."""

from __future__ import annotations

import logging

import pytest
from grpc._cython import cygrpc

from serving.grpc.quiet import keep_quiet_about_callers_that_left

LIBRARY = logging.getLogger("grpc._cython.cygrpc")


def logged_by_library(error: Exception) -> None:
    """Logs an error of a call as the library does."""
    try:
        raise error
    except type(error):
        LIBRARY.exception("ExecuteBatchError raised in core by servicer method [/inference/ModelInfer]")


def test_an_answer_that_reached_nobody_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    keep_quiet_about_callers_that_left()
    logged_by_library(cygrpc.ExecuteBatchError('Failed "execute_batch": (<SendMessageOperation>, <SendStatus>)'))
    assert not caplog.records


@pytest.mark.parametrize(
    "error",
    [
        cygrpc.ExecuteBatchError("Failed grpc_call_start_batch: 2 with grpc_call_error value: b'NOT_ON_SERVER'"),
        ValueError('Failed "execute_batch"'),
    ],
)
def test_other_errors_of_the_library_are_logged(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    keep_quiet_about_callers_that_left()
    logged_by_library(error)
    assert len(caplog.records) == 1


def test_lines_without_an_error_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    keep_quiet_about_callers_that_left()
    LIBRARY.warning("Aborting method [%s] due to server stop.", "/inference/ModelInfer")
    assert len(caplog.records) == 1


def test_keeping_quiet_twice_adds_one_filter() -> None:
    keep_quiet_about_callers_that_left()
    before = len(LIBRARY.filters)
    keep_quiet_about_callers_that_left()
    assert len(LIBRARY.filters) == before
