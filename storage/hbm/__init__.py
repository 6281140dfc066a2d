"""Holds rows in the memory of GPUs, as a tier over DRAM."""
