"""Blob stores show what every store must (`rawlog.testing.StoreTests`)."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from rawlog.formats.ambry import keys
from rawlog.testing.store import StoreTests
from tests.data.ambry_stores import copy_store, small_key, store_path

#: After everything in the golden files, so that nothing depends on when the tests run.
NOW = "1900000000000"


class TestBlobStore(StoreTests):
    family = "ambry"
    stores = (store_path("store-small"),)
    options: ClassVar = {"compact": {"now": NOW}, "erase": {"blobs": keys.text_of(small_key(5)), "now": NOW}}
    # "cleanshutdown" says that the process ended well, "remoteTokenTracker" how far replicas are: both are the process's own.
    derived = ("cleanshutdown", "remoteTokenTracker")
    repeated: ClassVar = {"compact": "every compaction raises the generation in the names of its files"}

    def copy(self, store: Path, target: Path) -> Path:
        target.parent.mkdir(parents=True, exist_ok=True)
        return copy_store(store.name, target)
