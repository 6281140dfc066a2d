"""Runs front ends in processes of their own: they serve HTTP and gRPC, and call one engine through shared memory."""
