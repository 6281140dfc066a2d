"""The configuration of when ids get rows, and when rows go."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from storage.errors import ConfigError
from storage.features.strict_model import StrictModel
from trainer.admission import LEAST_FALSE_RATE, MOST_FALSE_RATE, BloomAdmission
from trainer.config_errors import tag_unless_given
from trainer.eviction import Eviction


class CounterAdmissionConfig(StrictModel):
    """An exact count of every id that waits for its row."""

    type: Literal["counter"] = "counter"


class BloomAdmissionConfig(StrictModel):
    """A filter of bounded memory: see trainer.admission.BloomAdmission."""

    type: Literal["bloom"]
    #: Distinct ids that the table will ever see.
    expected_ids: int = Field(ge=1, le=10**12)
    #: The share of new ids that get a row too early, once expected_ids were seen.
    false_rate: float = Field(default=0.01, ge=LEAST_FALSE_RATE, le=MOST_FALSE_RATE)

    @property
    def bloom(self) -> BloomAdmission:
        """Returns what it describes."""
        return BloomAdmission(self.expected_ids, self.false_rate)


#: How ids without a row are counted; `type` is counter unless it is given.
AdmissionConfig = Annotated[
    Annotated[CounterAdmissionConfig | BloomAdmissionConfig, Field(discriminator="type")],
    tag_unless_given("type", "counter"),
]


class EvictionConfig(StrictModel):
    """When rows go, by any of the conditions that are given: see trainer.eviction.Eviction."""

    after_steps: int | None = Field(default=None, ge=1, lt=2**63)
    after_seconds: float | None = Field(default=None, gt=0.0, allow_inf_nan=False)
    below_norm: float | None = Field(default=None, gt=0.0, allow_inf_nan=False)
    #: Steps of a period, None for a sixteenth of the time after which rows go.
    period_steps: int | None = Field(default=None, ge=1, lt=2**63)

    @model_validator(mode="after")
    def _evicts(self) -> EvictionConfig:
        try:
            self.eviction  # noqa: B018  checks that there is a condition
        except ConfigError as error:
            raise ValueError(str(error).removeprefix("eviction: ")) from None
        return self

    @property
    def eviction(self) -> Eviction:
        """Returns what it describes."""
        return Eviction(self.after_steps, self.after_seconds, self.below_norm, self.period_steps)
