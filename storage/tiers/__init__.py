"""The tiers of a store. Import from the files: each loads its own engine."""
