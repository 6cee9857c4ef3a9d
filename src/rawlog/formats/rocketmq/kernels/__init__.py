"""Loops over the bytes of a RocketMQ store."""
