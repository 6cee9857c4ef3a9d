"""Log segments: record batches of magic 2, message sets of magic 0 and 1."""
