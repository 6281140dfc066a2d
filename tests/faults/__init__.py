"""Faults of the machine, injected into a process by LD_PRELOAD."""
