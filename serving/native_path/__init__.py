"""What the native servers of HTTP and gRPC have in common: models, routes and limits."""
