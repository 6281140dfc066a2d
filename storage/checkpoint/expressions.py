"""Checks symbolic sizes in a graph's JSON before torch sees them.

torch hands these strings to sympy, which evaluates them as Python. Here they are parsed to a syntax tree, and only
integer arithmetic on known symbols passes.
"""

from __future__ import annotations

import ast
import re

from storage.errors import UnsafeArtifact

MAX_EXPRESSION_CHARS = 1024
MAX_EXPRESSION_DEPTH = 24
MAX_INTEGER = 2**63 - 1
SYMBOL_PATTERN = r"s[0-9]{1,6}"
_SYMBOL = re.compile(SYMBOL_PATTERN)
_ASSUMPTIONS = frozenset({"integer", "positive", "nonnegative"})
_FUNCTIONS = frozenset(
    {"Add", "Mul", "Max", "Min", "Mod", "PythonMod", "FloorDiv", "CeilDiv", "CleanDiv", "ModularIndexing", "Identity"}
    | {"Eq", "Ne", "Equality", "Unequality", "StrictLessThan", "StrictGreaterThan", "LessThan", "GreaterThan"}
    | {"And", "Or", "Not"}
)
_BINARY = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
_COMPARE = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)


# Python reads 1_000 as a number; sympy never writes one like that.
_GROUPED_DIGITS = re.compile(r"[0-9]_")


def check_expression(text: str, *, where: str) -> None:
    """Accepts integer arithmetic on symbols such as `s31`; raises UnsafeArtifact for everything else."""
    if len(text) > MAX_EXPRESSION_CHARS:
        raise UnsafeArtifact(f"{where}: an expression of {len(text)} characters, at most {MAX_EXPRESSION_CHARS}")
    try:
        if _GROUPED_DIGITS.search(text):
            raise ValueError
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UnsafeArtifact(f"{where}: {text[:80]!r} is not an expression") from None
    if not _allowed(tree.body, MAX_EXPRESSION_DEPTH):
        raise UnsafeArtifact(f"{where}: {text[:80]!r} is more than integer arithmetic on sizes; it was not evaluated")


def _allowed(node: ast.expr, depth: int) -> bool:
    if depth == 0:
        return False
    below = depth - 1
    if isinstance(node, ast.Constant):
        return type(node.value) is int and abs(node.value) <= MAX_INTEGER
    if isinstance(node, ast.Name):
        return _SYMBOL.fullmatch(node.id) is not None
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub) and _allowed(node.operand, below)
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Pow):
            return _allowed_power(node.left, node.right, below)
        return isinstance(node.op, _BINARY) and _allowed(node.left, below) and _allowed(node.right, below)
    if isinstance(node, ast.Compare):
        return all(isinstance(op, _COMPARE) for op in node.ops) and all(
            _allowed(part, below) for part in (node.left, *node.comparators)
        )
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _allowed_call(node, node.func.id, below)
    return False


def _allowed_call(node: ast.Call, name: str, depth: int) -> bool:
    if any(isinstance(argument, ast.Starred) for argument in node.args):
        return False
    if name == "Symbol":
        return (
            len(node.args) == 1
            and isinstance(node.args[0], ast.Constant)
            and isinstance(node.args[0].value, str)
            and _SYMBOL.fullmatch(node.args[0].value) is not None
            and all(
                keyword.arg in _ASSUMPTIONS and isinstance(keyword.value, ast.Constant) and keyword.value.value is True
                for keyword in node.keywords
            )
        )
    if node.keywords:
        return False
    if name == "Integer":
        return len(node.args) == 1 and _integer(node.args[0]) is not None
    if name == "Pow":
        return len(node.args) == 2 and _allowed_power(node.args[0], node.args[1], depth)
    return name in _FUNCTIONS and all(_allowed(argument, depth) for argument in node.args)


def _integer(node: ast.expr) -> int | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _integer(node.operand)
        return None if value is None else -value
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) <= MAX_INTEGER:
        return node.value
    return None


def _allowed_power(base: ast.expr, exponent: ast.expr, depth: int) -> bool:
    # A power of a power doubles the digits at each level: sympy would compute numbers without end.
    for part in ast.walk(base):
        if isinstance(part, ast.Pow) or (isinstance(part, ast.Name) and part.id == "Pow"):
            return False
    if isinstance(exponent, ast.Call) and isinstance(exponent.func, ast.Name) and exponent.func.id == "Integer":
        exponent = exponent.args[0] if exponent.args else exponent
    return _integer(exponent) in (0, 1, 2) and _allowed(base, depth)
