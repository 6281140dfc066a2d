"""Says how events that are rows and events that are their labels are joined."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator, model_validator

from storage.features.strict_model import StrictModel


class KindOptions(StrictModel):
    """The column that tells rows and labels apart in one stream. Events of other kinds are ignored."""

    column: str
    #: The value of it in events that are rows.
    row: str
    #: The value of it in events that are labels.
    label: str


class JoinOptions(StrictModel):
    """Rows, such as impressions, that get their label from a later event, such as a click, with the same key.

    Times are those of `training.time_column`, in both kinds of events.
    """

    #: The columns that a row and its label have in common, such as a request and an item.
    key: tuple[str, ...] = Field(min_length=1, max_length=16)
    #: The column that is made: 1 where a label came within the window, 0 elsewhere.
    label: str
    #: How long after a row its label may happen.
    window_seconds: Annotated[float, Field(gt=0.0, le=30 * 86400.0, allow_inf_nan=False)]
    #: How far events may come behind later ones of their stream. What comes later than that is left out and counted.
    lateness_seconds: Annotated[float, Field(ge=0.0, le=86400.0, allow_inf_nan=False)] = 60.0
    #: Seconds after which a stream without events holds the other one up no longer.
    idle_seconds: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 60.0
    #: Rows that may wait for the end of their window, and labels that may be held, each; all of them are in memory.
    max_waiting: Annotated[int, Field(ge=1)] = 5_000_000
    #: How the events of one stream are distinguished; None where labels are a stream of their own.
    kind: KindOptions | None = None

    @field_validator("key", mode="before")
    @classmethod
    def _one_or_more(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _distinct(self) -> JoinOptions:
        names = [*self.key, self.label, *([self.kind.column] if self.kind else [])]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"the column {twice[0]!r} stands twice; expected a column each for key, label and kind")
        if self.kind is not None and self.kind.row == self.kind.label:
            raise ValueError(f"kind.row and kind.label are both {self.kind.row!r}; expected two values")
        return self
