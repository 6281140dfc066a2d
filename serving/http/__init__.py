"""Implements HTTP: the protocol, inference, the table of control operations on FastAPI, and the metrics page."""
