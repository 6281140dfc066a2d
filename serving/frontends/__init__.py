"""Front ends in processes of their own: they speak HTTP and gRPC, and ask one engine through shared memory."""
