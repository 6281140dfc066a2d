"""Causes the condition of every alert on real servers, scraped by a real Prometheus."""
