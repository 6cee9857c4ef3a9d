"""A metadata log and its snapshots: the state they add up to, checks, and rewriting."""
