"""Rows in the memory of GPUs: a tier over DRAM."""
