"""What a DRAM budget buys: what lookups cost, and what other budgets would give. Import from the files."""
