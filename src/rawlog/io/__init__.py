"""Bytes in and out: storage, the one way to write (Output), compression, checksums, windows of frames."""
