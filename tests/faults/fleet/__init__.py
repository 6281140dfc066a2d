"""Faults and measurements of replicas over one object store, behind HAProxy, with clients that check answers."""
