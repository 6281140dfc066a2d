"""Says what is logged of a model's requests and where, from the options of the server and of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from serving.config import ServerConfig
from serving.model_config.options import ModelOptions
from storage.errors import ConfigError
from storage.features import InputSpec
from storage.features.dtypes import FLOATS
from storage.served_log import ARM, AT, HASHED, ID, ROW, SCORE, SNAPSHOT, read_hash_key

_RESERVED = frozenset((ID, ROW, AT, SNAPSHOT, ARM))


@dataclass(frozen=True)
class LogSettings:
    """Says what is logged of a model's requests and where. Two that are equal log the same."""

    #: Of the model: its requests lie in `requests` there, and its labels in `labels`.
    folder: Path
    share: float
    #: Inputs that are left out, and those of which digests are written.
    drop: frozenset[str]
    hash: frozenset[str]
    key: bytes
    #: Bounds on the files of a folder together, and on the age of each.
    max_bytes: int
    max_age_s: float
    #: Requests are written into a file of their own at least so often.
    every_s: float

    @classmethod
    def of(cls, config: ServerConfig, options: ModelOptions, name: str) -> LogSettings | None:
        """Returns what is to be logged; None where the options ask for no log.

        Raises ConfigError where they ask for one that cannot be kept as they say.
        """
        if options.feature_log_share == 0:
            return None
        if config.feature_log is None:
            raise ConfigError(
                f"feature_log_share is {options.feature_log_share:g}, but the server was started without "
                "--feature-log, the folder of logs",
                field="feature_log",
            )
        key = b""
        if options.feature_log_hash:
            if config.feature_log_key is None:
                raise ConfigError(
                    "feature_log_hash needs a key, but the server was started without --feature-log-key",
                    field="feature_log_key",
                )
            key = read_hash_key(config.feature_log_key)
        return cls(
            config.feature_log / name,
            options.feature_log_share,
            frozenset(options.feature_log_drop),
            frozenset(options.feature_log_hash),
            key,
            options.feature_log_max_bytes,
            options.feature_log_max_age_s,
            options.feature_log_every_s,
        )

    def columns(self, inputs: Sequence[InputSpec]) -> list[tuple[InputSpec, str]]:
        """Returns the inputs that are logged, each with the name of its column.

        Raises ConfigError for options that do not fit the inputs of a version: then nothing may be logged, since what
        was to be left out might be written.
        """
        known = {entry.name for entry in inputs}
        for option, names in (("feature_log_drop", self.drop), ("feature_log_hash", self.hash)):
            if unknown := sorted(names - known):
                raise ConfigError(f"{option}: the model has no input {unknown[0]!r}", field=option)
        if both := sorted(self.drop & self.hash):
            raise ConfigError(f"feature_log_hash: {both[0]!r} is in feature_log_drop too", field="feature_log_hash")
        personal = {entry.source for entry in inputs if entry.name in self.drop | self.hash}
        columns: list[tuple[InputSpec, str]] = []
        taken: set[str] = set()
        for entry in inputs:
            if entry.name in self.drop:
                continue
            if entry.name in self.hash and (entry.dtype in FLOATS or entry.dtype == "BOOL"):
                raise ConfigError(
                    f"feature_log_hash: input {entry.name!r} is {entry.dtype}; expected one of text or whole numbers",
                    field="feature_log_hash",
                )
            if entry.name not in self.hash and entry.source in personal:
                raise ConfigError(
                    f"feature_log_drop: input {entry.name!r} is made of the training column {entry.source!r}, as "
                    "one is that is dropped or hashed; drop or hash it, too",
                    field="feature_log_drop",
                )
            name = f"{entry.source}{HASHED}" if entry.name in self.hash else entry.source
            if name in _RESERVED or name.startswith(SCORE):
                raise ConfigError(f"input {entry.name!r} has the name of a column of the log", field="feature_log_drop")
            # Two inputs may be made of one training column; it is there once.
            if name not in taken:
                taken.add(name)
                columns.append((entry, name))
        return columns
