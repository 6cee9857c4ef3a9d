"""The old names of what is in `store`, until nobody imports them."""

from __future__ import annotations

from rawlog.formats.kraft.store.store import At, clusters
from rawlog.formats.kraft.store.store import MetadataStore as Replica

__all__ = ["At", "Replica", "clusters"]
