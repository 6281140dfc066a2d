"""The `emberline` command."""

from __future__ import annotations

from emberline.cli.frame import main

__all__ = ["main"]
