"""Prints what the import contracts cannot see: circles of files, and folders that import each other.

    python -m tests.repo.imports            # everything that is wrong; ends with 1 when something is
    python -m tests.repo.imports --arrows serving        # what each part of a folder imports of its siblings

Every import counts: at the top of a file, inside a function, and for typing only. `from package import name` counts as
an import of the file that defines the name, because packages re-export names.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("benchmarks", "emberline", "loadtest", "serving", "storage", "trainer")

Graph = Mapping[str, set[str]]


@dataclass(frozen=True)
class Module:
    """A file by its dotted name, and its imports as (module, name); name is "" for `import module`."""

    name: str
    is_package: bool
    imports: tuple[tuple[str, str], ...]


def read_modules(root: Path = ROOT, packages: Iterable[str] = PACKAGES) -> dict[str, Module]:
    """Returns every Python file below some packages, by its dotted name."""
    found: dict[str, Module] = {}
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            imports = tuple(_imports(ast.parse(path.read_text(), str(path)), name, is_package))
            found[name] = Module(name, is_package, imports)
    return found


def _imports(tree: ast.AST, name: str, is_package: bool) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = name.split(".") if is_package else name.split(".")[:-1]
            above = parts[: len(parts) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((source, alias.name) for alias in node.names)


def file_graph(modules: Mapping[str, Module]) -> dict[str, set[str]]:
    """Returns the files that each file imports."""
    graph: dict[str, set[str]] = {name: set() for name in modules}
    for module in modules.values():
        for source, name in module.imports:
            target = _defined_in(modules, source, name)
            if target is not None and target != module.name:
                graph[module.name].add(target)
    return graph


def _defined_in(modules: Mapping[str, Module], source: str, name: str, depth: int = 0) -> str | None:
    """Returns the file that defines the name that `from source import name` gives; None when it is not one of ours."""
    if name and f"{source}.{name}" in modules:
        return f"{source}.{name}"
    module = modules.get(source)
    if module is None:
        return None
    if module.is_package and name and depth < 8:
        for inner, inner_name in module.imports:
            if inner_name == name and inner != source:
                return _defined_in(modules, inner, inner_name, depth + 1) or source
    return source


def circles(graph: Graph) -> list[list[str]]:
    """Returns the strongly connected parts with more than one member, each in order, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        on_stack.add(node)
        for target in sorted(graph[node]):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in on_stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            members = []
            while True:
                member = stack.pop()
                on_stack.discard(member)
                members.append(member)
                if member == node:
                    break
            if len(members) > 1:
                found.append(sorted(members))

    for node in graph:
        if node not in index:
            visit(node)
    return sorted(found)


def siblings(graph: Graph, folder: str) -> dict[str, set[str]]:
    """Returns what each file and sub-folder of a package imports of the others; "" for the top level."""
    prefix = f"{folder}." if folder else ""

    def part(name: str) -> str | None:
        return prefix + name[len(prefix) :].split(".")[0] if name.startswith(prefix) else None

    found: dict[str, set[str]] = defaultdict(set)
    for name, targets in graph.items():
        own = part(name)
        if own is None:
            continue
        found[own] |= {there for target in targets if (there := part(target)) is not None and there != own}
    return {name: {target for target in targets if target in found} for name, targets in found.items()}


def knots(graph: Graph, modules: Mapping[str, Module]) -> list[list[str]]:
    """Returns files and folders beside each other that import each other, so that none of them is below the rest."""
    found: list[list[str]] = []
    for folder in ("", *(name for name, module in modules.items() if module.is_package)):
        found += circles(siblings(graph, folder))
    return found


def arrows(graph: Graph, parts: Iterable[str]) -> list[str]:
    """Returns the imports between some parts, file by file."""
    parts = list(parts)

    def part(name: str) -> str | None:
        return next((each for each in parts if name == each or name.startswith(f"{each}.")), None)

    lines = []
    for name, targets in sorted(graph.items()):
        own = part(name)
        lines += [f"{name} -> {target}" for target in sorted(targets) if own and part(target) not in (None, own)]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arrows", metavar="FOLDER", help="print what each part of a folder imports, such as serving")
    options = parser.parse_args()
    modules = read_modules()
    graph = file_graph(modules)
    if options.arrows is not None:
        folder = options.arrows.strip("/").replace("/", ".")
        if folder not in modules:
            parser.error(f"--arrows: {options.arrows!r} is no package of {', '.join(PACKAGES)}")
        for name, targets in sorted(siblings(graph, folder).items()):
            print(f"{name}: {', '.join(sorted(targets)) or '-'}")
        return 0
    wrong = 0
    for title, groups in (("a circle of files", circles(graph)), ("no order between", knots(graph, modules))):
        for group in groups:
            wrong += 1
            print(f"{title}: {', '.join(group)}")
            for line in arrows(graph, group):
                print(f"  {line}")
    print(f"{len(modules)} files, {sum(map(len, graph.values()))} imports of each other, {wrong} circle(s)")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
