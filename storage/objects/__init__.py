"""A model repository in an object store: what it offers, publishing into it, and bringing it to this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage.lazy import lazy_names
from storage.objects.urls import is_url, url_of

if TYPE_CHECKING:
    from storage.objects.object_store import ObjectStore

__all__ = ["ObjectStore", "is_url", "url_of"]

# It loads asyncio, which a command that only asks whether a path is a URL does not need.
__getattr__ = lazy_names(__name__, {"ObjectStore": "storage.objects.object_store"})
