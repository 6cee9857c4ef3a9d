"""A journal as a store: what its segments and indexes say together, and how it is rewritten."""
