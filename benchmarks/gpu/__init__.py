"""Measures what a GPU does, and predicts what it should do (the modules whose names begin with prediction)."""
