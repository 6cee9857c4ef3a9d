"""A RocketMQ store: its state, checks between its files, and rewriting."""
