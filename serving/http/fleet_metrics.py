"""Collects the metrics of a server's part in the fleets of its models."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import Metric

from serving.fleet.member import FleetMember
from serving.http.prometheus import family, label_value
from serving.repository.model_repository import ModelRepository

# Label: model.
_OF_MEMBERS: list[tuple[str, str, Callable[[FleetMember], float]]] = [
    ("current", "1 while this server serves what all replicas serve", lambda m: not m.why_not()),
    (
        "epoch",
        "Number of changes of what all replicas serve that this one has seen",
        lambda m: m.served.epoch,
    ),
    (
        "epochs_behind",
        "Changes of what all replicas serve that this one has seen and not made yet",
        lambda m: m.epochs_behind,
    ),
    (
        "members_behind",
        "Replicas that this one waits for before it commits a snapshot; 0 without the lease",
        lambda m: len(m.replicas_behind),
    ),
    ("waiting", "1 while a snapshot is staged here and waits for other replicas", lambda m: m.hurries()),
    ("refused", "Snapshots newer than the served one that a replica refused", lambda m: len(m.refused_newer)),
    (
        "switch_late_seconds",
        "From the time at which all replicas were to switch until this one had, at its last switch",
        lambda m: m.model.switch_late_s,
    ),
]


def fleets(repository: ModelRepository) -> Iterator[Metric]:
    """Yields what replicas agree on; nothing without replicas."""
    if repository.fleet is None:
        return
    found = [(name, repository.fleet.member(name)) for name in repository.names]
    members = [(member, {"model": label_value(name)}) for name, member in found if member is not None]
    for name, meaning, value in _OF_MEMBERS:
        yield family(f"emberline_fleet_{name}", "gauge", meaning, [(of, float(value(each))) for each, of in members])
    behind = [
        ({**of, "replica": label_value(replica)}, 1.0) for each, of in members for replica in each.replicas_behind
    ]
    meaning = "1 for each replica that this one waits for before it commits a snapshot"
    yield family("emberline_fleet_waits_for", "gauge", meaning, behind)
