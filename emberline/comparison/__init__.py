"""Comparison of training runs: what their configurations and figures have different, as a table and as a page."""
