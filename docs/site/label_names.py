"""Finds the labels of a metric in the source: the keys of the dictionaries that its samples are made of."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
#: Variables of comprehensions around an expression, with what they run over and the variables around that.
_Bound: TypeAlias = Mapping[str, tuple[ast.expr, "_Bound"]]
# The bound of a bucket, which every histogram has, and the label of an exemplar, which is none of its metric.
_NO_LABELS = ("le", "trace_id")


def label_names(samples: ast.expr, function: Function, functions: Mapping[str, Function]) -> tuple[str, ...]:
    """Returns the labels of samples, the model's first.

    samples: an expression within function. functions: those of the module, by name: they may make dictionaries, or call
    the function with some.
    """
    found = dict.fromkeys(_Keys(functions).of(samples, function, {}))
    for name in _NO_LABELS:
        found.pop(name, None)
    first = [each for each in ("model", "version") if each in found]
    return (*first, *(each for each in found if each not in first))


class _Keys:
    def __init__(self, functions: Mapping[str, Function]) -> None:
        self._functions = functions
        self._seen: set[tuple[str, int]] = set()

    def of(self, node: ast.AST, function: Function, bound: _Bound) -> Iterator[str]:
        """Yields the keys of dictionaries in an expression, and in what its variables and calls come from."""
        if isinstance(node, _Comprehension):
            yield from self._comprehension(node, function, bound)
            return
        if isinstance(node, ast.Dict):
            yield from (key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str))
        elif isinstance(node, ast.Name):
            yield from self._variable(node.id, function, bound)
        for inner in ast.iter_child_nodes(node):
            yield from self.of(inner, function, bound)

    def _comprehension(self, node: ast.AST, function: Function, bound: _Bound) -> Iterator[str]:
        inside: _Bound = bound
        for each in node.generators:  # type: ignore[attr-defined]
            inside = {**inside, **dict.fromkeys(_names(each.target), (each.iter, inside))}
            if isinstance(node, ast.DictComp) and isinstance(node.key, ast.Name) and node.key.id in _names(each.target):
                # Such as {key: row[key] for key in ("snapshot", "arm")}.
                texts = [text.value for text in getattr(each.iter, "elts", []) if isinstance(text, ast.Constant)]
                yield from (text for text in texts if isinstance(text, str))
        for part in ("elt", "key", "value"):
            if hasattr(node, part):
                yield from self.of(getattr(node, part), function, inside)

    def _variable(self, name: str, function: Function, bound: _Bound) -> Iterator[str]:
        if name in bound:
            source, around = bound[name]
            yield from self.of(source, function, around)
            return
        for origin, place in self._sources(name, function):
            if (place.name, id(origin)) not in self._seen:
                self._seen.add((place.name, id(origin)))
                yield from self.of(origin, place, {})

    def _sources(self, name: str, function: Function) -> Iterator[tuple[ast.AST, Function]]:
        """Yields the expressions that a variable of a function, or a call of one, gets its value from."""
        called = self._functions.get(name)
        if called is not None and called is not function:
            made = [each for each in ast.walk(called) if isinstance(each, ast.Return | ast.Yield)]
            yield from ((each.value, called) for each in made if each.value is not None)
        parameters = [each.arg for each in function.args.args]
        if name in parameters:
            yield from self._arguments(parameters.index(name), function)
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and any(name in _names(target) for target in node.targets):
                yield node.value, function
            elif isinstance(node, ast.AnnAssign | ast.AugAssign) and name in _names(node.target):
                yield from [(node.value, function)] if node.value is not None else []
            elif isinstance(node, ast.For) and name in _names(node.target):
                yield node.iter, function
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
                yield from ((each, function) for each in node.args if name in _names(node.func.value))

    def _arguments(self, place: int, function: Function) -> Iterator[tuple[ast.AST, Function]]:
        for caller in self._functions.values():
            for node in ast.walk(caller):
                is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
                if is_call and node.func.id == function.name and len(node.args) > place:  # type: ignore[attr-defined]
                    yield node.args[place], caller  # type: ignore[attr-defined]


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
