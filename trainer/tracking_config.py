"""The part of the training configuration about tracking: where the figures of a run go while it trains."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from storage.features.strict_model import StrictModel


class _TrackingConfig(StrictModel):
    #: Steps between the loss and rates that are written; figures of epochs are written in any case.
    every_steps: int = Field(default=100, ge=1)


class TensorBoardConfig(_TrackingConfig):
    """Event files of TensorBoard."""

    type: Literal["tensorboard"]
    #: The folder of the event files; None for OUTPUT/tensorboard.
    folder: str | None = None


class MlflowConfig(_TrackingConfig):
    """A run of MLflow."""

    type: Literal["mlflow"]
    #: A database or a server, as MLflow writes it; None for what MLflow is set to, or else OUTPUT/mlflow.db.
    uri: str | None = None
    #: The experiment that the run belongs to; None for the name of the model.
    experiment: str | None = None
    #: None for the name of the output folder.
    run_name: str | None = None


def _named(content: Any) -> Any:
    return {"type": content} if isinstance(content, str) else content


#: What `tracking` of a configuration may say; a name alone is the type.
TrackingConfig = Annotated[
    Annotated[TensorBoardConfig | MlflowConfig, Field(discriminator="type")], BeforeValidator(_named)
]
TRACKERS = ("tensorboard", "mlflow")
