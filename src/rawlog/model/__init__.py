"""The nouns of rawlog: what a format, a table, a store, a finding and a report are. Nothing here reads a file."""
