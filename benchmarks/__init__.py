"""One script a claim: it measures us, a peer or a limit in the same run and prints ratios. Run any of them with --help."""
