"""The HTTP front end: inference as plain ASGI, everything else through FastAPI."""
