"""Contains the tables of rows that are trained, in DRAM and on SSD. Import from the modules."""
