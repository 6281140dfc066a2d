"""Makes what `emberline top` shows: readings of a server's metrics, figures between two of them, and frames."""
