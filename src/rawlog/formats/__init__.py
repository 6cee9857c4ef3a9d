"""The formats: one package per family, with the same file names in each. `rawlog.registry` is how others find them."""
