"""The model repository of a server: which models there are, who answers for each, and what an operator can ask."""
