"""What a GPU does, measured, and what it should do, predicted: modules whose names begin with prediction."""
