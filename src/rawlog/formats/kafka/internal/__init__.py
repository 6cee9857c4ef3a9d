"""What the records of internal topics, metadata logs and control batches mean."""
