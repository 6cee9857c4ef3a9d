"""Loops over the bytes of Ambry stores: `messages` of a log, `texts` made of their fields."""
