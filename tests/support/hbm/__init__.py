"""Lookups on a GPU without a server around them."""
