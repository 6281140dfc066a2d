"""Gives tests of deploy/ the programs that check files, and the manifests as kustomize renders them."""
