"""Contains what both transports share above the engine: the interface to models, metadata, control messages."""
