"""`emberline token`: makes, lists and removes the tokens of an access file."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

import click
import yaml

from emberline.cli.command import Group, LocalPath
from emberline.cli.console import JSON, print_json, table_console
from emberline.fitted_table import FittedTable, whole, wrapping
from storage.errors import ConfigError, Conflict, NotFound

ACCESS = click.option(
    "--access-file",
    "--access",
    "access",
    type=LocalPath(dir_okay=False),
    required=True,
    help="The access file, as `emberline serve --access-file` reads it.",
)


@click.group(
    cls=Group,
    name="token",
    epilog="""\b
The steps:
  emberline token new --name ranker-web --role predict --model 'ranker*' --access-file access.yaml
  emberline serve --model-repository build/models --access-file access.yaml
  EMBERLINE_TOKEN=... emberline predict ranker --instances '{"user": 1, "item": 7}'
  emberline token remove ranker-web --access-file access.yaml""",
)
def command() -> None:
    """Make, list and remove the tokens of a server's access file.

    The file holds digests: who reads it cannot ask the server anything. A running server takes a changed file within a
    second. docs/security.md says what the file may hold besides.
    """


@command.command(
    name="new",
    epilog="""\b
Examples:
  emberline token new --name ranker-web --role predict --model 'ranker*' --access-file access.yaml
  emberline token new --name prometheus --role read --access-file access.yaml
  emberline token new --name release-job --role admin --expires 2027-01-31 --access-file access.yaml""",
)
@click.option("--name", required=True, help="Who will hold it: the name in the audit log and in refusals.")
@click.option(
    "--role",
    "roles",
    type=click.Choice(["predict", "read", "feedback", "admin"]),
    multiple=True,
    required=True,
    help="predict: ask models. read: see state, statistics and metrics. feedback: send labels of scores. admin: load, "
    "unload, roll back, read, and send labels. May be given several times.",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    default=["*"],
    help="Models that it is good for, as a pattern of a shell; may be given several times.",
)
@click.option("--requests-per-second", type=float, help="How often its holder may ask; default: the server's bound.")
@click.option(
    "--expires",
    type=click.DateTime(["%Y-%m-%d"]),
    metavar="DATE",
    help="Last day on which it is good (UTC), as 2027-01-31.",
)
@ACCESS
def new(
    name: str,
    roles: tuple[str, ...],
    models: tuple[str, ...],
    requests_per_second: float | None,
    expires: Any,
    access: Path,
) -> None:
    """Make a token, add its digest to the access file (made if need be), and print the token, this once."""
    from serving.security.tokens import digest_of, new_token

    content = _read(access) if access.exists() else {}
    entries = content.setdefault("tokens", [])
    if any(entry["name"] == name for entry in entries):
        raise Conflict(f"{access} has a token of {name!r} already; remove it first, or choose another name")
    token = new_token()
    entry: dict[str, Any] = {"name": name, "sha256": digest_of(token), "roles": list(dict.fromkeys(roles))}
    entry["models"] = list(models)
    if requests_per_second is not None:
        entry["requests_per_second"] = requests_per_second
    if expires is not None:
        entry["expires"] = expires.date()
    entries.append(entry)
    _write(access, content)
    click.echo(token)
    click.echo(f"{access} has its digest; the token itself is nowhere but here", err=True)


@command.command(name="list", epilog="\b\nExample:\n  emberline token list --access-file access.yaml")
@ACCESS
@JSON
def list_tokens(access: Path, as_json: bool) -> None:
    """Show who has a token, and what it is good for."""
    entries = _read(access).get("tokens", [])
    if as_json:
        # Without the digests, which say nothing about who is allowed to do what.
        print_json({"tokens": [{key: value for key, value in each.items() if key != "sha256"} for each in entries]})
        return
    table = FittedTable(wrapping("name"), wrapping("roles"), wrapping("models"), "requests/s", whole("expires"))
    for entry in entries:
        rate = entry.get("requests_per_second")
        table.add_row(
            entry["name"],
            ", ".join(entry["roles"]),
            ", ".join(entry.get("models", ["*"])),
            "" if rate is None else f"{rate:g}",
            str(entry.get("expires") or ""),
        )
    table_console().print(table)


@command.command(name="remove", epilog="\b\nExample:\n  emberline token remove ranker-web --access-file access.yaml")
@click.argument("name")
@ACCESS
def remove(name: str, access: Path) -> None:
    """Take the token of NAME back: a running server refuses it within a second."""
    content = _read(access)
    entries = content.get("tokens", [])
    left = [entry for entry in entries if entry["name"] != name]
    if len(left) == len(entries):
        names = ", ".join(entry["name"] for entry in entries) or "none"
        raise NotFound(f"{access} has no token of {name!r}; it has {names}")
    content["tokens"] = left
    _write(access, content)
    click.echo(f"{name}: removed")


def _read(path: Path) -> dict[str, Any]:
    """Returns the file's content, checked as a server checks it."""
    from serving.security.access_file import read_access_file

    read_access_file(path)
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    return found


def _write(path: Path, content: dict[str, Any]) -> None:
    """Replaces the file in one step. Comments at its top stay, those between the entries do not."""
    from serving.security.access_file import parse_access_file

    head, mode = "", 0o600
    if path.exists():
        mode = path.stat().st_mode & 0o777
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.strip() and not line.startswith("#"):
                break
            head += line
    text = head + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    parse_access_file(text, path)
    target = path.resolve()
    fresh = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except OSError as error:
        raise ConfigError(f"--access-file: cannot write {path}: {error.strerror}", field="access-file") from None
    try:
        with os.fdopen(file, "w", encoding="utf-8") as writer:
            writer.write(text)
        fresh.chmod(mode)
        fresh.replace(target)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
