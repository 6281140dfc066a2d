"""Metrics of scores, a file for each kind of label; `trainer.metrics` is their public surface."""
