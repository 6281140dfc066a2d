"""Names the file of a configuration in errors that are found only when its model is built or trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storage.errors import ChangedConfig, ConfigError
from trainer.config import TrainConfig


@contextmanager
def named_file(source: Path | str | None) -> Iterator[None]:
    """Puts the file before the text of a ConfigError about one of its entries. None: it came from no file."""
    try:
        yield
    except ChangedConfig:
        raise  # it names the run, whose configuration differs from that of the file
    except ConfigError as error:
        # `data` alone is the data that was given, and not an entry below `data`.
        is_entry = error.field.partition(".")[0] in TrainConfig.model_fields and error.field != "data"
        if source is None or not is_entry or str(error).startswith(str(source)):
            raise
        raise ConfigError(f"{source}: {error}", field=error.field) from error
