"""The whole pipeline on real clicks: data, train, publish, serve, predict, load test. `make quickstart` runs it."""
