"""Differences of two snapshots of a model: rows, dense weights, and the scores of requests."""
