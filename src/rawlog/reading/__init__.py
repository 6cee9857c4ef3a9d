"""From paths to rows: which files there are, which rows are wanted, and reading them in splits."""
