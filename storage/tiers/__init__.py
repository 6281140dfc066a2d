"""The tiers of a store, one file each. Import from the files: each loads its own engine."""
