"""KServe v2 and v1 on the wire: bytes to checked tensors, scores to bytes. Nothing here knows a model's tables."""
