"""Compares a server with the one that it replaces, and finds what explains their differences."""
