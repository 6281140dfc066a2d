"""Scores without a server: files of rows in, scores out, with the serving engine; exports a table's rows as Parquet."""

from __future__ import annotations

from serving.scoring.export import export_table, snapshot_rows
from serving.scoring.scorer import Scorer, open_source, score_parquet
from storage.checkpoint.as_of import AsOf, find_as_of

__all__ = ["AsOf", "Scorer", "export_table", "find_as_of", "open_source", "score_parquet", "snapshot_rows"]
