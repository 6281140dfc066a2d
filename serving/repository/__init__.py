"""Manages the model repository: which models there are, what answers for each, and what an operator can ask."""
