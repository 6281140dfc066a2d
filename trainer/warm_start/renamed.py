"""Names of tables, features and weights that were others in the source."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from storage.errors import ConfigError
from storage.features.strict_model import did_you_mean

Kind = Literal["tables", "features", "weights"]
_KINDS: tuple[Kind, ...] = ("tables", "features", "weights")


class Renamed:
    """Returns the old name for a new one.

    names: old names by new ones, each of a table, a feature, or the first parts of the names of weights; of all that it
    fits, or after `tables.`, `features.` or `weights.` of that kind alone. now, before: names by kind, in the model and
    in the source. Raises ConfigError for an entry that fits nothing.
    """

    def __init__(
        self, names: Mapping[str, str], now: Mapping[Kind, Collection[str]], before: Mapping[Kind, Collection[str]]
    ) -> None:
        self._found: dict[Kind, dict[str, str]] = {kind: {} for kind in _KINDS}
        for new, old in names.items():
            kinds, plain = _kinds_of(new)
            old = old.removeprefix(f"{kinds[0]}.") if len(kinds) == 1 else old
            for kind in kinds:
                if _known(kind, plain, now[kind]) and _known(kind, old, before[kind]):
                    self._found[kind][plain] = old
            if not any(plain in self._found[kind] for kind in kinds):
                raise ConfigError(_misfit(new, plain, old, kinds, now, before), field="map")

    def table(self, name: str) -> str:
        """Returns the source's name of a table."""
        return self._found["tables"].get(name, name)

    def feature(self, name: str) -> str:
        """Returns the source's name of a feature."""
        return self._found["features"].get(name, name)

    def weight(self, name: str) -> str:
        """Returns the source's name of a weight: the longest known beginning is replaced."""
        parts = name.split(".")
        for length in range(len(parts), 0, -1):
            old = self._found["weights"].get(".".join(parts[:length]))
            if old is not None:
                return ".".join([old, *parts[length:]])
        return name


def _kinds_of(new: str) -> tuple[tuple[Kind, ...], str]:
    for kind in _KINDS:
        if new.startswith(f"{kind}."):
            return (kind,), new.removeprefix(f"{kind}.")
    return _KINDS, new


def _known(kind: Kind, name: str, known: Collection[str]) -> bool:
    if kind != "weights":
        return name in known
    return any(each == name or each.startswith(f"{name}.") for each in known)


def _misfit(
    new: str,
    plain: str,
    old: str,
    kinds: tuple[Kind, ...],
    now: Mapping[Kind, Collection[str]],
    before: Mapping[Kind, Collection[str]],
) -> str:
    here = any(_known(kind, plain, now[kind]) for kind in kinds)
    wanted, names = (old, before) if here else (plain, now)
    known = [name for kind in kinds if kind != "weights" for name in names[kind]]
    where = "the source" if here else "the model"
    return (
        f"map {new}={old}: {where} has no table, feature or weight {wanted!r}{did_you_mean(wanted, known)}; "
        "write NEW=OLD, the name in the configuration first"
    )
