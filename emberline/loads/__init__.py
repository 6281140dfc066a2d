"""What `emberline loadtest` does beside sending: it makes the requests, shows how far it is, and reports."""
