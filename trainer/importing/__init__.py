"""Publishes tables that other systems wrote, with a module around them or alone."""

from __future__ import annotations

from trainer.importing.delta import DeltaReport, import_delta
from trainer.importing.publish import ImportReport, import_tables, look_at_tables
from trainer.importing.sorted_table import ImportedTable
from trainer.importing.stand_ins import rows_elsewhere

__all__ = [
    "DeltaReport",
    "ImportReport",
    "ImportedTable",
    "import_delta",
    "import_tables",
    "look_at_tables",
    "rows_elsewhere",
]
