"""Estimates what lookups cost and what other DRAM budgets would give. Import from the modules."""
