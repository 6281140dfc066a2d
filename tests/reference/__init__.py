"""The third reference: what a published version answers, computed a third time without any of our code.

It reads the files by its own parser, keeps rows in Python dicts, runs the transforms in plain Python from their
documentation, and computes pooling and the dense part in float64. Slow, obvious, and wrong in no way that we share.
"""
