"""One script a claim: it measures us, a peer or a limit in one run and prints ratios. Each has a --help."""
