"""Lists what causes each alert of deploy/prometheus/alerts.yml."""

from __future__ import annotations

from tests.support.alerts import disks, fleets, requests, updates
from tests.support.alerts.caused import Cause

CAUSES: dict[str, Cause] = {
    "EmberlineDown": updates.down,
    "EmberlineNoneReady": updates.none_ready,
    "EmberlineNotReady": updates.not_ready,
    "EmberlineSnapshotOld": updates.snapshot_old,
    "EmberlineEventsOld": updates.events_old,
    "EmberlineReplicasDiffer": updates.replicas_differ,
    "EmberlineFleetWaiting": fleets.fleet_waiting,
    "EmberlineFleetMemberLate": fleets.member_late,
    "EmberlineFleetMemberBehind": fleets.member_behind,
    "EmberlineMirrorFailing": fleets.mirror_failing,
    "EmberlineMirrorSilent": fleets.mirror_silent,
    "EmberlineSnapshotRefused": updates.bad_delta,
    "EmberlineUpdateWaiting": updates.update_waiting,
    "EmberlineMergeFailing": disks.merge_failing,
    "EmberlineQueueTime": requests.queue_time,
    "EmberlineErrors": requests.errors,
    "EmberlineUnresolvedIds": disks.unresolved_ids,
    "EmberlineDiskFull": disks.disk_full,
    "EmberlineRepositoryDiskFull": disks.repository_disk_full,
    "EmberlineDiskSlow": disks.disk_slow,
    "EmberlineStuckClients": requests.stuck_client,
    "EmberlineConnectionsFull": requests.connections_full,
    "EmberlineGpuLost": requests.gpu_lost,
    "EmberlineCrashing": requests.crashing,
}
