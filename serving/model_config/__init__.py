"""A model's configuration: Triton's config.pbtxt read strictly, and Emberline's own options in its parameters."""
