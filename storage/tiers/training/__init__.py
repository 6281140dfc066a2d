"""Rows that are being trained, in DRAM and on SSD. Import from the files."""
