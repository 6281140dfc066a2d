"""Contains the tiers of a store. Import from the modules: each loads only the engine that it needs."""
