"""Drafts a training configuration from a sample of the data, for `emberline init`."""

from __future__ import annotations

from emberline.draft.draft import MODELS, Draft, draft

__all__ = ["MODELS", "Draft", "draft"]
