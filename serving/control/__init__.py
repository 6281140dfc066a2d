"""What both transports share above the engine: the interface to models, metadata and the control plane's messages."""
