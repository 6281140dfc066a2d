"""From the columns of requests to scores on the host: features, lookup, dense graph; and the snapshots they read."""
