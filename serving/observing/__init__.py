"""Observes requests: access log, slow requests, traces, and timelines of what the threads do."""
