"""Measures the project's claims, one script for each. See the --help of a script.

A script measures us, a peer or a limit in one run and prints ratios.
"""
