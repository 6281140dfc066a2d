"""Contains the console: a web page about the server and its models, and the stream of events that keeps it current."""
