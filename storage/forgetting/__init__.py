"""Finds what lies on disk of ids that are to be forgotten: rows, requests that hold them, lists and bytes."""

from __future__ import annotations

from storage.forgetting.needles import Needles
from storage.forgetting.places import Place, find_places
from storage.forgetting.served_logs import forget_in_logs
from storage.forgetting.wanted import Wanted, wanted_values

__all__ = ["Needles", "Place", "Wanted", "find_places", "forget_in_logs", "wanted_values"]
