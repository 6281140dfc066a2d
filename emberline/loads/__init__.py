"""Reports load tests: progress on a terminal, a table, and a page with plots."""
