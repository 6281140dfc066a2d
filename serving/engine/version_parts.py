"""Holds what all snapshots of a version share: its features, its store, and the interface of its dense graph."""

from __future__ import annotations

import functools

from serving.pipeline.host import Pipeline, RequestFeatures
from serving.pipeline.user_side import UserSide
from storage.checkpoint import PublishedVersion
from storage.features import FeatureEngine, FeatureSpec
from storage.tiers.tiered import TieredStore


class VersionParts:
    """Holds the feature engine, the store and the graph interface of one published version. Thread-safe."""

    def __init__(self, published: PublishedVersion, store: TieredStore) -> None:
        #: MODEL/VERSION, for messages.
        self.name = f"{published.path.parent.name}/{published.version}"
        self.spec: FeatureSpec = published.spec
        self.graph = published.manifest.graph
        self.engine = FeatureEngine(self.spec)
        #: None where no part of the graph depends on the user alone.
        self.user_side = UserSide.of(self.spec, self.graph)
        self.requests = RequestFeatures(self.engine, self.user_side)
        self.store = store

    @functools.cached_property
    def shadow_pipeline(self) -> Pipeline:
        """The pipeline of a shadow's thread; one for the life of the version, because its plan belongs to the store."""
        return self.processor_pipeline(None)

    def processor_pipeline(self, lookup_timeout_s: float | None) -> Pipeline:
        """Creates a pipeline on the processor, for one thread at a time."""
        return Pipeline(self.spec, self.requests, self.store, self.graph, lookup_timeout_s)
