"""Publishes models to the native servers of HTTP and gRPC: how they are described, their routes and limits."""
