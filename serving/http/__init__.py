"""HTTP: the protocol, inference, the table of control operations, and the metrics page."""
