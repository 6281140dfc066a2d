"""Hashes the files of the served versions again after a restart, in the background and at a slow pace.

What is served does not depend on it: rows come from the store's own pages, which were made of verified bytes and are
checked whenever they are read, and every other file was hashed before it was parsed. But a store that must be filled
again needs these files, so damage to them is reported while the model is still served.
"""

from __future__ import annotations

import logging

from serving.updates.live_model import LiveModel, Stopped
from storage.checkpoint import PublishedVersion
from storage.errors import EmberlineError, IntegrityError, NotFound, UnsafeArtifact
from storage.tiers.pace import Pace

logger = logging.getLogger("emberline.serving")


def recheck(model: LiveModel) -> None:
    """Hashes the files of each version that a mount has. Damage is logged, and shown in `LiveModel.damaged`."""
    with model.lock:
        loaded_versions = [loaded for mount in model.mounts for loaded in mount.loaded_versions.values()]
    for published in {loaded.published.path: loaded.published for loaded in loaded_versions}.values():
        try:
            _recheck(model, published)
        except Stopped:
            return


def _recheck(model: LiveModel, published: PublishedVersion) -> None:
    pace = Pace(hurry=lambda: False)

    def step() -> None:
        model.check_stop()
        pace.step()

    try:
        published.check(step)
    except NotFound:
        return  # the publisher has dropped it
    except (IntegrityError, UnsafeArtifact) as error:
        model.damaged[published.snapshot] = (
            f"{error}; what is served was verified before and is not affected, but the version cannot be loaded "
            "again: publish it again"
        )
        logger.error("%s/%d: %s", model.name, published.version, model.damaged[published.snapshot])
    except EmberlineError as error:
        logger.warning("%s/%d: its files could not be checked again: %s", model.name, published.version, error)
    else:
        logger.info("%s/%d: its files are those that were published", model.name, published.version)
