"""Loops over Kafka's bytes: batches (any magic), and the records of magic 2."""
