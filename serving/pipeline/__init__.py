"""Turns the columns of requests into scores on the host: features, lookup, dense graph; and keeps the snapshots."""
