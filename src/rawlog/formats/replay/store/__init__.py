"""A recording as a store: rewriting it."""
