"""Implements KServe v2 and v1 on the wire: decodes bytes to checked tensors, encodes scores. Does not know tables."""
