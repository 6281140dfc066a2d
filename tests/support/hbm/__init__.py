"""Supports tests of lookups on a GPU without a server around them."""
