"""Prometheus' text form: the head of a metric, and labels with any value."""

from __future__ import annotations


def head(lines: list[str], name: str, kind: str, meaning: str) -> None:
    """Adds the two lines before the values of a metric. meaning: a sentence without its full stop."""
    lines.append(f"# HELP {name} {meaning}.")
    lines.append(f"# TYPE {name} {kind}")


def label_text(**values: object) -> str:
    """The labels as they stand between the braces."""
    return ",".join([f'{name}="{escaped(str(value))}"' for name, value in values.items()])


def escaped(text: str) -> str:
    """A label's value: backslash, quote and newline are escaped, and what is no text at all is replaced."""
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return text.encode("utf-8", "replace").decode()
