"""An Ambry store: its state, checks between its files, and rewriting."""
