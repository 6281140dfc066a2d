"""GPUs that train: which one a run uses, what it is set to, and how tensors move between it and the host."""

from __future__ import annotations

from trainer.devices.choice import choose_device
from trainer.devices.running import DeviceReport, described_device, device_report, on_host, out_of_memory, running_on
from trainer.devices.transfers import Arriving, CudaTransfers, Sent, Transfers, replaced_transfers, transfers_of

__all__ = [
    "Arriving",
    "CudaTransfers",
    "DeviceReport",
    "Sent",
    "Transfers",
    "choose_device",
    "described_device",
    "device_report",
    "on_host",
    "out_of_memory",
    "replaced_transfers",
    "running_on",
    "transfers_of",
]
