"""Loops over the bytes of log segments."""
