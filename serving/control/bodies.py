"""Parses the JSON bodies of calls that control a model. They are strict: a misspelt key never makes another call."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from storage.byte_sizes import parse_bytes
from storage.errors import InvalidInput, Unsupported

Reference = Annotated[str, Field(max_length=64)]


class ControlBody(BaseModel):
    """A body without keys, as for resume and pause."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> Self:
        """Reads a body. Raises InvalidInput that names the key, and the nearest known one for an unknown key."""
        for key in content:
            if key not in cls.model_fields:
                close = difflib.get_close_matches(key[:100], cls.model_fields, n=1)
                known = ", ".join(map(repr, cls.model_fields)) or "an empty object"
                hint = f"did you mean {close[0]!r}?" if close else f"expected {known}"
                raise InvalidInput(f"unknown key {key[:100]!r}; {hint}", field=key[:100])
        try:
            return cls.model_validate(dict(content))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join(map(str, first["loc"]))
            text = first["msg"].removeprefix("Value error, ")
            if not field:
                raise InvalidInput(text, field=next(iter(content), "")) from None
            got = "nothing" if first["type"] == "missing" else repr(first["input"])[:60]
            raise InvalidInput(f"{field!r}: {text}, got {got}", field=field) from None


class RollbackBody(ControlBody):
    """The body of a rollback. to: the snapshot to go back to; or steps: how many snapshots back."""

    to: Reference = ""
    steps: Annotated[int, Field(ge=1, le=1000)] = 1

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if self.to and "steps" in self.model_fields_set:
            raise ValueError("'to' and 'steps' both say where to; send one of them")
        return self


class PinBody(ControlBody):
    """The body of a pin. to: the snapshot to stay at; without it the present one."""

    to: Reference = ""


class CanaryBody(ControlBody):
    """The body of a canary: a fraction, or promote, or stop.

    fraction: share of the requests. to: which snapshot; without it the next that arrives.
    """

    fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    to: Reference = ""
    promote: bool = False
    stop: bool = False

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.fraction is not None) + self.promote + self.stop != 1:
            raise ValueError("expected 'fraction' (with or without 'to'), 'promote': true, or 'stop': true")
        if self.to and self.fraction is None:
            raise ValueError("'to' goes with 'fraction' only")
        return self


class ShadowBody(ControlBody):
    """The body of a shadow: a snapshot or version and a share of the requests, or promote, or stop.

    to: what scores copies of requests. share: share of the requests. top_k: rows whose overlap is compared. for_s: how
    long, in seconds; null for no end.
    """

    to: Reference = ""
    share: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=1, le=100_000)] = 10
    for_s: Annotated[float, Field(gt=0, le=31_622_400)] | None = None
    promote: bool = False
    stop: bool = False

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if bool(self.to) + self.promote + self.stop != 1:
            raise ValueError("expected 'to' and 'share', 'promote': true, or 'stop': true")
        if (self.share is not None) != bool(self.to):
            raise ValueError("'to' and 'share' go together")
        return self


class BudgetBody(ControlBody):
    """The body of a budget.

    dram_bytes: what the rows may take in DRAM, in bytes or as "2GiB"; null: as in config.pbtxt.
    """

    dram_bytes: (
        Annotated[Annotated[int, Field(ge=0, lt=2**63)], BeforeValidator(parse_bytes, json_schema_input_type=int | str)]
        | None
    )


class SessionsBody(ControlBody):
    """The body of a number of sessions. count: sessions that each version is to have; null: as in config.pbtxt."""

    count: Annotated[int, Field(ge=1, le=256)] | None


class AllowBody(ControlBody):
    """The body of an allow.

    version: which version is allowed. inputs: the inputs and outputs whose change is accepted, by name.
    """

    version: Annotated[int, Field(ge=1, lt=10**18)]
    inputs: Annotated[list[str], Field(min_length=1, max_length=10_000)]


class WakeBody(ControlBody):
    """The body by which one replica makes another look at the object store, or asks what it serves.

    wake: the word that it keeps there. looks: whether it is to look; its answer is about what it serves by now.
    """

    wake: Annotated[str, Field(max_length=64)]
    looks: bool = True


class RegisterBody(ControlBody):
    """The body of a registration.

    key: the segment, as in `shm_open`; the region is `byte_size` bytes of it from `offset` on.
    """

    key: Annotated[str, Field(min_length=1, max_length=255)]
    offset: Annotated[int, Field(ge=0, lt=2**62)] = 0
    byte_size: Annotated[int, Field(ge=0, lt=2**62)]


class LoadBody(ControlBody):
    """The body of a load, as Triton's clients send it.

    A configuration or files of the caller's own are refused.
    """

    parameters: dict[str, Any] = {}

    @model_validator(mode="after")
    def _checked(self) -> Self:
        check_load_parameters(self.parameters)
        return self


class UnloadBody(ControlBody):
    """The body of an unload, as Triton's clients send it. No model has dependents here."""

    parameters: dict[str, Any] = {}

    @model_validator(mode="after")
    def _checked(self) -> Self:
        check_unload_parameters(self.parameters)
        return self


def check_load_parameters(parameters: Mapping[str, Any]) -> None:
    """Raises Unsupported for Triton's `config` and `file:` overrides, InvalidInput for anything else."""
    for key in parameters:
        if key == "config" or key.startswith("file:"):
            raise Unsupported(f"parameter {key[:100]!r} is not supported: a model is what lies in its folder")
        raise InvalidInput(f"unknown parameter {key[:100]!r}; a load takes none", field=key[:100])


def check_unload_parameters(parameters: Mapping[str, Any]) -> None:
    """Raises InvalidInput for anything but `unload_dependents`, which changes nothing here."""
    for key, value in parameters.items():
        if key != "unload_dependents":
            raise InvalidInput(f"unknown parameter {key[:100]!r}; expected 'unload_dependents'", field=key[:100])
        if type(value) is not bool:
            raise InvalidInput("parameter 'unload_dependents' must be true or false", field=key)
