"""Implements the gRPC transport: Triton's service in tritonclient's own messages."""
