"""Runs sessions on a GPU: pinned staging, one stream each, a CUDA graph for each batch bucket, weights in slots."""
