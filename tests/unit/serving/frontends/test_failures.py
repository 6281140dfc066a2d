"""Errors cross between processes by kind and text, and what is a fault of ours crosses as a reference to the log."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import grpc
import pytest

from serving.errors import BodyTooLarge, EngineFailure, Forbidden, RateLimited, Unauthenticated, status_of
from serving.frontends.failures import from_wire, to_wire
from serving.protocol.signature import SignatureChanged
from storage import errors

FOR_CALLERS = (
    errors.InvalidInput,
    errors.NotFound,
    errors.Unsupported,
    errors.Unavailable,
    errors.Overloaded,
    errors.DeadlineExceeded,
    errors.Conflict,
    SignatureChanged,
    Unauthenticated,
    Forbidden,
    RateLimited,
)


def all_kinds(root: type[errors.EmberlineError]) -> Iterator[type[errors.EmberlineError]]:
    for kind in root.__subclasses__():
        if kind.__module__.split(".")[0] in ("storage", "serving"):
            yield kind
            yield from all_kinds(kind)


def crossed(error: BaseException) -> errors.EmberlineError:
    return from_wire(json.loads(json.dumps(to_wire(error))))


@pytest.mark.parametrize("kind", FOR_CALLERS)
@pytest.mark.parametrize("text", ["", "input 'x': wrong", "\N{SNOWMAN} \ud800 \x00", "long " * 50_000])
def test_what_a_caller_may_hear_keeps_its_kind_and_text(kind: type[errors.EmberlineError], text: str) -> None:
    there = crossed(kind(text))
    assert type(there) is kind
    assert str(there) == text
    assert status_of(there) == status_of(kind(text))


def test_an_invalid_input_keeps_its_field() -> None:
    there = crossed(errors.InvalidInput("input 'x': wrong", field="x"))
    assert isinstance(there, errors.InvalidInput)
    assert there.field == "x"


def test_every_error_of_the_tree_gives_the_status_that_it_has_in_one_process(caplog: pytest.LogCaptureFixture) -> None:
    kinds = set(all_kinds(errors.EmberlineError)) - {BodyTooLarge, EngineFailure}
    assert set(FOR_CALLERS) < kinds
    for kind in kinds:
        with caplog.at_level(logging.CRITICAL):
            assert status_of(crossed(kind("text")))[:2] == status_of(kind("text"))[:2], kind


class CallersOwn(errors.InvalidInput):
    """An error of a kind that the other side does not know."""


def test_a_kind_that_the_other_side_does_not_know_crosses_as_the_nearest_that_it_does() -> None:
    there = crossed(CallersOwn("too long", field="x"))
    assert isinstance(there, errors.InvalidInput)
    assert (str(there), there.field) == ("too long", "x")


@pytest.mark.parametrize("error", [ValueError("secret"), KeyError("secret")])
def test_an_internal_error_is_logged_once_and_crosses_as_a_reference(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        there = crossed(error)
        status, code, text = status_of(there)
    assert isinstance(there, EngineFailure)
    assert (status, code) == (500, grpc.StatusCode.INTERNAL)
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[1] is error
    assert "secret" not in text
    assert text.startswith("internal error ")
    assert text.split()[2].rstrip(";") in record.getMessage()


def test_a_store_that_failed_is_logged_and_another_attempt_may_succeed(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        there = crossed(errors.StoreError("secret"))
    assert isinstance(there, errors.Unavailable)
    assert status_of(there)[:2] == (503, grpc.StatusCode.UNAVAILABLE)
    (record,) = caplog.records
    assert "secret" not in str(there)
    assert str(there).split()[4].rstrip(";") in record.getMessage()
