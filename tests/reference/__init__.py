"""Slow, obvious decoders that share no line with rawlog: the judges of its kernels and readers."""
