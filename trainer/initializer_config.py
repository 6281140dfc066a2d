"""The options of an initializer: what rows begin with, and what ids without a row read as."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from storage.errors import ConfigError
from storage.features.strict_model import StrictModel
from storage.initializers import Initializer, InitializerKind


class InitializerConfig(StrictModel):
    """Values of rows: see storage.initializers.Initializer."""

    type: InitializerKind = "uniform"
    scale: float = Field(default=0.05, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _zeros_have_no_scale(cls, content: Any) -> Any:
        if isinstance(content, dict) and content.get("type") == "zeros":
            return {"scale": 0.0, **content}
        return content

    @model_validator(mode="after")
    def _possible(self) -> InitializerConfig:
        try:
            self.initializer  # noqa: B018  checks the scale
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    @property
    def initializer(self) -> Initializer:
        """Returns what it describes."""
        return Initializer(self.type, self.scale)


ZEROS = InitializerConfig(type="zeros", scale=0.0)
# What the product of rows begins with: the other factor as it is.
ONES = InitializerConfig(type="constant", scale=1.0)
