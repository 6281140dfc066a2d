"""Opens the streams that are followed: rows alone, or rows and the events that are their labels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from storage.data.streams import Credentials, JoinedSource, JoinLog, StreamSource, open_stream
from storage.errors import ConfigError
from trainer.config import TrainConfig
from trainer.data import BlockIndex, Wanted
from trainer.row_sources import learned_columns


class Followed:
    """A stream and where its files are unpacked. output: the folder of the run. labels: the stream of `data.join`."""

    def __init__(
        self,
        config: TrainConfig,
        source: Path | str,
        labels: Path | str | None,
        output: Path,
        credentials: Credentials,
    ) -> None:
        self._indexes = [BlockIndex(output / name) for name in ("stream-index", "labels-index")]
        wanted, options, join = learned_columns(config), config.data, config.data.join
        if join is None:
            if labels is not None:
                raise ConfigError(
                    "labels: the configuration does not say how labels are joined; give data.join", field="data.join"
                )
            self.stream: StreamSource = open_stream(source, wanted, options, self._indexes[0], credentials)
            return
        if (labels is None) == (join.kind is None):
            raise ConfigError(
                "labels: data.join.kind tells rows and labels of one stream apart; expected it, or a stream of labels "
                "(labels, --labels), and not both",
                field="data.join.kind",
            )
        assert config.training.time_column is not None
        fields = dict.fromkeys(join.key, "data.join.key")
        fields["" if join.kind is None else join.kind.column] = "data.join.kind.column"
        fields.pop("", None)
        own = {config.training.time_column: "training.time_column"}
        of_rows = replace(
            wanted,
            numbers={name: field for name, field in wanted.numbers.items() if name != join.label},
            texts={name: field for name, field in wanted.texts.items() if name != join.label},
            keep=tuple(dict.fromkeys([*wanted.keep, *fields])),
            fields={**wanted.fields, **fields},
        )
        if join.kind is not None:
            # Events that are labels have none of the columns of rows.
            columns = [*(entry.source for entry in of_rows.inputs), *of_rows.numbers, *of_rows.texts, *wanted.keep]
            missing = {name: None for name in columns if name not in (*own, *fields)}
            options = options.model_copy(update={"missing_columns": {**missing, **options.missing_columns}})
        rows = open_stream(source, of_rows, options, self._indexes[0], credentials)
        events = None
        if labels is not None:
            of_labels = Wanted((), keep=(*fields, *own), fields={**fields, **own})
            events = open_stream(labels, of_labels, config.data, self._indexes[1], credentials)
        skips = config.data.on_damaged == "skip"
        self.joined = JoinedSource(
            rows, events, join, config.training.time_column, JoinLog(output / "join"), skips=skips
        )
        self.stream = self.joined

    #: The stream, where labels are joined to its rows; None where they are among its columns.
    joined: JoinedSource | None = None

    def remove_copies(self) -> None:
        """Removes what was unpacked."""
        for index in self._indexes:
            index.remove_copies()
