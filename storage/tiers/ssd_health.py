"""Exports the checks of `storage.tiers.ssd.health` under the name that operators' scripts import."""

from __future__ import annotations

from storage.tiers.ssd.health import StoreReport, TableReport, describe_store, repair_store, verify_store

__all__ = ["StoreReport", "TableReport", "describe_store", "repair_store", "verify_store"]
