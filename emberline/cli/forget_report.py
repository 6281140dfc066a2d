"""The report of `emberline forget`: what was found, what was done, and what is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import click

from emberline.cli.console import print_json, table_console
from emberline.cli.forget_servers import ServerFindings
from emberline.fitted_table import FittedTable, wrapping

if TYPE_CHECKING:
    from storage.forgetting import Place
    from trainer.forgetting import Forgotten

_SHOWN = 40


@dataclass
class ForgetReport:
    """Holds what a call of the command found and did."""

    ids: dict[str, int]
    shared: dict[str, str]
    found: list[Place] = field(default_factory=list)
    done: Forgotten | None = None
    servers: list[ServerFindings] = field(default_factory=list)
    #: Rows that were erased from logs of served requests.
    log_rows: int = 0
    left: list[Place] = field(default_factory=list)
    files: int = 0
    bytes: int = 0
    seconds: float = 0.0

    @property
    def is_clean(self) -> bool:
        """True if nothing of the ids is left anywhere that was looked at."""
        stays = self.done is not None and self.done.stays
        return not self.left and not stays and all(server.is_clean for server in self.servers)

    def show(self, *, as_json: bool, dry_run: bool) -> None:
        """Prints it."""
        if as_json:
            print_json(self._value(dry_run))
            return
        what = ", ".join(f"{count:,} of {name}" for name, count in self.ids.items())
        click.echo(f"ids to forget: {what}")
        for feature, reason in self.shared.items():
            click.echo(f"shared rows stay: feature {feature} {reason}")
        if dry_run:
            _show_places(self.found, "found in")
            if not self.found:
                click.echo("nothing is found of them")
            return
        if self.done is None:
            click.echo("run and repository have nothing of them")
        else:
            _show_done(self.done)
        if self.log_rows:
            click.echo(f"erased rows of logs of requests: {self.log_rows:,}")
        for server in self.servers:
            click.echo(_line(server))
        _show_places(self.left, "left in")
        click.echo(f"{self._end()}: read {self.files:,} files, {self.bytes:,} bytes; {self.seconds:.1f} s in all")

    def _end(self) -> str:
        if not self.is_clean:
            return "something is left"
        return "nothing is left but the shared rows named above" if self.shared else "nothing is left"

    def _value(self, dry_run: bool) -> dict[str, Any]:
        value: dict[str, Any] = {"ids": self.ids, "shared": self.shared, "found": _values(self.found)}
        if dry_run:
            return value
        done = None if self.done is None else {**asdict(self.done), "version": str(self.done.version)}
        servers = [{**asdict(server), "is_clean": server.is_clean} for server in self.servers]
        return {
            **value,
            "done": done,
            "servers": servers,
            "log_rows": self.log_rows,
            "left": _values(self.left),
            "files": self.files,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 3),
            "is_clean": self.is_clean,
        }


def _show_done(done: Forgotten) -> None:
    rows = ", ".join(f"{count:,} of {name}" for name, count in done.rows.items())
    click.echo(f"erased rows: {rows}")
    if done.sample_rows or done.waiting_rows:
        click.echo(
            f"removed raw rows: {done.sample_rows:,} of the sample, {done.waiting_rows:,} that waited for a label"
        )
    click.echo(f"published {done.published} in place of all older snapshots")
    if done.stays:
        click.echo(
            f"a fleet still serves {', '.join(done.stays)}: run this command again when it has taken the new version"
        )


def _line(server: ServerFindings) -> str:
    if server.left:
        return f"{server.url}: {server.left} (after {server.seconds:.1f} s)"
    rows = "none has a row" if not server.with_row else f"{server.with_row:,} have a row"
    return f"{server.url}: serves {server.serves} alone after {server.seconds:.1f} s; of {server.asked:,} ids {rows}"


def _show_places(places: Sequence[Place], title: str) -> None:
    if not places:
        return
    table = FittedTable(wrapping(title), wrapping("what"), wrapping("table"), "count")
    for place in places[:_SHOWN]:
        table.add_row(str(place.path), place.what, place.table, f"{place.count:,}")
    table_console().print(table)
    if len(places) > _SHOWN:
        click.echo(f"and {len(places) - _SHOWN:,} other files; --json lists all")


def _values(places: Sequence[Place]) -> list[dict[str, Any]]:
    return [{**asdict(place), "path": str(place.path)} for place in places]
