"""Lets the replicas of a repository in an object store serve one snapshot: they stage it alone and switch together."""
