"""A Kafka partition as a whole: what its segments add up to, how they are checked, and how they are rewritten."""
