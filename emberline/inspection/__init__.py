"""Analyses embedding tables of training runs and published versions: figures, advice, and files of the rows."""

from __future__ import annotations
