"""What all snapshots of a version share: its features, its store, and the interface of its dense graph."""

from __future__ import annotations

from serving.pipeline.host import Pipeline, RequestFeatures
from serving.pipeline.user_side import UserSide
from storage.checkpoint import PublishedVersion
from storage.features import FeatureEngine, FeatureSpec
from storage.tiers.tiered import TieredStore


class VersionParts:
    """Any thread. name: MODEL/VERSION, for messages. user_side: None where the graph has no part of the user's own."""

    def __init__(self, published: PublishedVersion, store: TieredStore) -> None:
        self.name = f"{published.path.parent.name}/{published.version}"
        self.spec: FeatureSpec = published.spec
        self.graph = published.manifest.graph
        self.engine = FeatureEngine(self.spec)
        self.user_side = UserSide.of(self.spec, self.graph)
        self.requests = RequestFeatures(self.engine, self.user_side)
        self.store = store

    def processor_pipeline(self, lookup_timeout_s: float | None) -> Pipeline:
        """A new pipeline on the processor, for one thread at a time."""
        return Pipeline(self.spec, self.requests, self.store, self.graph, lookup_timeout_s)
