"""Implements the gRPC front end: Triton's service in tritonclient's own messages."""
