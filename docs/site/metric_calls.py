"""Reads from the source which metrics a module makes: names, kinds, meanings and labels.

It knows the calls in which this project makes metrics (`_MAKERS`), a loop over a table of names and meanings around
them, and functions of the module that pass a name or a table on to them. A call that it cannot read is an error, so no
metric is left out in silence.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from docs.site.label_names import Function, label_names
from docs.site.pages import SiteError

Entry: TypeAlias = tuple[str, str]
# Maps a call to the places of its name, its meaning and its samples, and its kind where that is not an argument.
_MAKERS: dict[str, tuple[int, int, int | None, str]] = {
    "family": (0, 2, 3, ""),
    "event_ages": (0, 1, 2, "histogram"),
    "Metric": (0, 1, None, ""),
    "GpuMetric": (0, 2, None, ""),
    "CounterMetricFamily": (0, 1, None, "counter"),
    "GaugeMetricFamily": (0, 1, None, "gauge"),
    "HistogramMetricFamily": (0, 1, None, "histogram"),
}
_KINDS = ("counter", "gauge", "histogram", "info", "summary")


@dataclass(frozen=True, order=True)
class Described:
    """A metric, as the source has it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


def metrics_of(source: str, path: str) -> list[Described]:
    """Returns the metrics that a module makes, in the order of the source.

    path: its path in the repository, for errors. Raises SiteError for a call whose name or meaning cannot be read.
    """
    return list(_Module(ast.parse(source), path).metrics())


class _Module:
    def __init__(self, tree: ast.Module, path: str) -> None:
        self._path = path
        self._texts: dict[str, ast.expr] = {}
        for node in tree.body:
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(target, ast.Name) and isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                self._texts[target.id] = node.value
        self._functions: dict[str, Function] = {
            node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }

    def metrics(self) -> Iterator[Described]:
        for function in self._functions.values():
            for call in _calls(function):
                yield from self._made_by(call, function)

    def _made_by(self, call: ast.Call, function: Function) -> Iterator[Described]:
        name = _called(call)
        if name in _MAKERS:
            yield from self._made_by_maker(call, name, function)
            return
        passed_on = self._functions.get(name)
        if passed_on is None:
            return
        # A function of the module that makes metrics of what it is given: names and meanings, or a table of them.
        given = dict(zip([each.arg for each in passed_on.args.args], call.args, strict=False))
        for inner in _calls(passed_on):
            for entry, kind, prefix in self._with_arguments(inner, passed_on, given, function):
                full = prefix + entry[0]
                labels = (*self._labels(call.args[-1], function), *self._given_labels(passed_on, given))
                yield Described(full, kind or _kind_of(full), labels, entry[1])

    def _made_by_maker(self, call: ast.Call, name: str, function: Function) -> Iterator[Described]:
        at_name, at_meaning, at_samples, kind = _MAKERS[name]
        parameters = {each.arg for each in function.args.args}
        if _variables(call.args[at_name]) & parameters or isinstance(call.args[at_name], ast.Attribute):
            return  # read where the function is called, or where the object is made
        loop = self._loop_around(call, call.args[at_name], function)
        if loop is not None and isinstance(loop.iter, ast.Name) and loop.iter.id in parameters:
            return
        kind = kind or next((each for each in map(self._text, call.args) if each in _KINDS), "")
        for entry in self._entries(call.args[at_name], call.args[at_meaning], loop, function):
            samples = call.args[at_samples] if at_samples is not None else None
            labels = self._declared(call, function) if samples is None else self._labels(samples, function)
            yield Described(entry[0], kind or _kind_of(entry[0]), labels, entry[1].removesuffix("."))

    def _with_arguments(
        self, inner: ast.Call, passed_on: Function, given: dict[str, ast.expr], function: Function
    ) -> Iterator[tuple[Entry, str, str]]:
        """Yields the entries that a call makes within a function that was called with these arguments."""
        name = _called(inner)
        if name not in _MAKERS and name not in self._functions:
            return
        at_name, at_meaning, _, kind = _MAKERS.get(name, (0, 1, None, ""))
        if len(inner.args) <= max(at_name, at_meaning):
            return
        expression = inner.args[at_name]
        wanted = _variables(expression) & given.keys()
        loop = self._loop_around(inner, expression, passed_on)
        if wanted and loop is not None and isinstance(loop.iter, ast.Name) and loop.iter.id in given:
            # Both a part of the names and the table are arguments.
            prefix = self._prefix(expression, given)
            for entry in self._table(given[loop.iter.id], inner):
                yield entry, kind, prefix
        elif wanted:
            prefix = self._prefix(expression)
            inner_name = given[wanted.pop()]
            meaning = inner.args[at_meaning]
            said = given.get(meaning.id, meaning) if isinstance(meaning, ast.Name) else meaning
            outer = self._loop_around(inner_name, inner_name, function)
            if isinstance(inner_name, ast.Name) and inner_name.id in {each.arg for each in function.args.args}:
                return
            if outer is not None and _is_parameter(outer.iter, function):
                return
            if kind == "" and len(inner.args) > 1 and isinstance(inner.args[1], ast.Constant):
                kind = str(inner.args[1].value) if inner.args[1].value in _KINDS else ""
            for entry in self._entries(inner_name, said, outer, function):
                yield entry, kind, prefix
        elif loop is not None and isinstance(loop.iter, ast.Name) and loop.iter.id in given:
            of_table = given[loop.iter.id]
            prefix = self._prefix(expression)
            if name in self._functions:  # passed on once more, as `_each` does with `_family`
                prefix = self._prefix_of(name)
            for entry in self._table(of_table, inner):
                yield entry, kind, prefix

    def _prefix_of(self, name: str) -> str:
        """Returns what a function puts before the names that it is given."""
        for call in _calls(self._functions[name]):
            if _called(call) in _MAKERS:
                return self._prefix(call.args[0])
        return ""

    def _entries(self, name: ast.expr, meaning: ast.expr, loop: ast.For | None, function: Function) -> Iterator[Entry]:
        if loop is None:
            yield self._said(name, function), self._said(meaning, function)
            return
        prefix = self._prefix(name)
        for entry in self._table(loop.iter, name):
            yield prefix + entry[0], entry[1]

    def _table(self, table: ast.expr, near: ast.expr) -> Iterator[Entry]:
        """Yields names and meanings of a table, which is a list of tuples that begin with both."""
        if isinstance(table, ast.Name):
            table = self._texts.get(table.id, table)
        if not isinstance(table, ast.List | ast.Tuple):
            raise self._unread(near)
        for row in table.elts:
            texts = [self._text(each) for each in row.elts[:2]] if isinstance(row, ast.Tuple) else []
            if len(texts) < 2 or None in texts:
                raise self._unread(row)
            yield str(texts[0]), str(texts[1])

    def _loop_around(self, node: ast.expr, name: ast.expr, function: Function) -> ast.For | None:
        """Returns the loop around a call that the variable in its name comes from."""
        wanted = _variables(name) - self._texts.keys()
        for loop in ast.walk(function):
            if isinstance(loop, ast.For) and _variables(loop.target) & wanted and node in list(ast.walk(loop)):
                return loop
        return None

    def _said(self, node: ast.expr, function: Function) -> str:
        """Returns the text of an expression; of a variable, the one that was assigned last before it."""
        text = self._text(node)
        if text is None and isinstance(node, ast.Name):
            assigned = [
                each.value
                for each in ast.walk(function)
                if isinstance(each, ast.Assign) and each.lineno < node.lineno and node.id in _variables(each.targets[0])
            ]
            text = self._text(assigned[-1]) if assigned else None
        if text is None:
            raise self._unread(node)
        return text

    def _text(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        if isinstance(node, ast.Name) and node.id in self._texts:
            return self._text(self._texts[node.id])
        if isinstance(node, ast.JoinedStr):
            parts = [self._text(part.value if isinstance(part, ast.FormattedValue) else part) for part in node.values]
            return None if None in parts else "".join(map(str, parts))
        return None

    def _prefix(self, name: ast.expr, given: Mapping[str, ast.expr] | None = None) -> str:
        """Returns what stands before the variable in a name. given: arguments that are texts, by their names."""
        if not isinstance(name, ast.JoinedStr):
            return ""
        parts: list[str] = []
        for part in name.values:
            value = part.value if isinstance(part, ast.FormattedValue) else part
            if given is not None and isinstance(value, ast.Name):
                value = given.get(value.id, value)
            text = self._text(value)
            if text is None:
                break
            parts.append(text)
        return "".join(parts)

    def _labels(self, samples: ast.expr, function: Function) -> tuple[str, ...]:
        return label_names(samples, function, self._functions)

    def _given_labels(self, passed_on: Function, given: Mapping[str, ast.expr]) -> tuple[str, ...]:
        """Returns the labels whose names are arguments of a call: keys of dictionaries that are parameters."""
        keys = [key for node in ast.walk(passed_on) if isinstance(node, ast.Dict) for key in node.keys]
        texts = [self._text(given[key.id]) for key in keys if isinstance(key, ast.Name) and key.id in given]
        return tuple(text for text in texts if text is not None)

    def _declared(self, call: ast.Call, function: Function) -> tuple[str, ...]:
        """Returns the labels that the call names itself, or those of the samples that the result gets."""
        for keyword in call.keywords:
            if keyword.arg == "labels":
                given = keyword.value
                if isinstance(given, ast.Name):
                    local = [
                        each.value
                        for each in ast.walk(function)
                        if isinstance(each, ast.Assign) and given.id in _variables(each.targets[0])
                    ]
                    given = local[0] if local else self._texts.get(given.id, given)
                return tuple(str(each.value) for each in getattr(given, "elts", []) if isinstance(each, ast.Constant))
        if _called(call) == "GpuMetric":
            return ("gpu_uuid",)
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "attr", "") == "samples":
                return self._labels(node.value, function)
        return ()

    def _unread(self, node: ast.expr) -> SiteError:
        return SiteError(
            f"{self._path}:{node.lineno}: the reference of metrics cannot read a name or a meaning here; write both as "
            "texts in the call, or as the first two of each tuple of a table in the module (docs/site/metric_calls.py)"
        )


def _calls(function: Function) -> list[ast.Call]:
    return [node for node in ast.walk(function) if isinstance(node, ast.Call)]


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _variables(node: ast.expr) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _is_parameter(node: ast.expr, function: Function) -> bool:
    return isinstance(node, ast.Name) and node.id in {each.arg for each in function.args.args}


def _kind_of(name: str) -> str:
    return "counter" if name.endswith("_total") else "gauge"
