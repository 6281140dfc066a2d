"""Lookups on a card without a server around them."""
