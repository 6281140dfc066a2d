"""What `emberline top` shows: readings of a server's metrics, figures between two of them, and a frame of both."""
