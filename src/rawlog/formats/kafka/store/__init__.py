"""A Kafka partition and log directory: state, checks between their files, and rewriting."""
