"""Logs a sample of served requests, takes their labels, and says how good the scores were."""
