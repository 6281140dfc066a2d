"""Loaded models: one copy of weights and tables, a bounded queue, and the sessions that work it off."""
