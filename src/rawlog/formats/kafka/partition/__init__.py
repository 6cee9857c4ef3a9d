"""A partition: its state, checks between its files, and rewriting."""
