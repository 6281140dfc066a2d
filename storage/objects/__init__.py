"""A model repository in an object store: what it offers, publishing into it, and bringing it to this machine."""

from storage.objects.object_store import ObjectStore
from storage.objects.urls import is_url, url_of

__all__ = ["ObjectStore", "is_url", "url_of"]
