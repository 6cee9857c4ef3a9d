"""Engines run jobs: `local` with threads in this process, `spark` with tasks wherever Spark puts them."""

from __future__ import annotations
