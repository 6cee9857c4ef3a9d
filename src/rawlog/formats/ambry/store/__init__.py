"""An Ambry store: its state, checks between its files, and rewriting."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rawlog.formats.ambry import paths
from rawlog.model.format import File, Lookup
from rawlog.model.store import Copies, Panel, Rewrite, Store

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from rawlog.io.output import Folder
    from rawlog.model.difference import Difference
    from rawlog.model.finding import Account, Rule
    from rawlog.model.format import Keep
    from rawlog.model.plan import Reading
    from rawlog.model.recovery import RescueOptions, Rescuer
    from rawlog.model.report import Report
    from rawlog.model.verb import Section


class BlobStore(Store):
    """The directory of one partition's replica."""

    def system_name(self) -> str | None:
        return paths.store_name(self)

    def accounts(self) -> Sequence[Account]:
        from rawlog.formats.ambry.store import rules

        return rules.accounts(self)

    def reading(self) -> Reading:
        from rawlog.formats.ambry.store import repair

        return repair.reading(self)

    def overview(self) -> Iterable[Panel]:
        from rawlog.formats.ambry.store import store

        return store.overview(self)

    def inventory(self) -> Section | None:
        from rawlog.formats.ambry.store import store

        return store.inventory(self)

    def rows_of(self, table: str, options: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
        from rawlog.formats.ambry.store import store

        return store.blobs(self, options) if table == "ambry.blobs" else store.chunks(self, options)

    # Rewriting ------------------------------------------------------------------------------------------------------------

    @Rewrite(options=("max_entries", "probability"))
    def rebuild(self, folder: Folder, options: Mapping[str, str]) -> Report:
        from rawlog.formats.ambry.store import repair

        return repair.rebuild(self, folder, options)

    @Rewrite(
        options=("max_entries", "probability", "capacity"),
        unrepaired=("ambry.log.time", "ambry.log.envelope", "ambry.log.metadata"),
    )
    def repair(self, folder: Folder, options: Mapping[str, str]) -> Report:
        from rawlog.formats.ambry.store import repair

        return repair.repair(self, folder, options)

    @Rewrite(
        options=(
            "filter",
            "segments",
            "now",
            "retention_hours",
            "reference_time",
            "purge_tombstones",
            "max_entries",
            "probability",
        )
    )
    def compact(self, folder: Folder, options: Mapping[str, str]) -> Report:
        from rawlog.formats.ambry.store.compact import compact

        return compact(self, folder, options)

    @Rewrite(options=("blobs", "now"), keeps=True, content_only=True)
    def erase(self, folder: Folder, options: Mapping[str, str], keep: Keep | None = None) -> Report:
        from rawlog.formats.ambry.store.erase import erase

        return erase(self, folder, options, keep)

    @classmethod
    def stores(cls, verb: str, files: Sequence[File], options: Mapping[str, str]) -> Sequence[Store]:
        from rawlog.formats.ambry.store import rewrite

        return rewrite.stores_of(files, options)

    @classmethod
    def rescuer(cls, options: RescueOptions, target: Path) -> Rescuer:
        from rawlog.formats.ambry.store.rescue import Rescue

        return Rescue(options, target)

    @classmethod
    def copy_ids(cls, batch: pa.RecordBatch) -> pa.Array:
        from rawlog.formats.ambry import structures

        return structures.copy_ids(batch)

    @classmethod
    def part_ids(cls, batch: pa.RecordBatch) -> pa.Array:
        from rawlog.formats.ambry import structures

        return structures.part_ids(batch)

    # Several stores -------------------------------------------------------------------------------------------------------

    @classmethod
    def settle(cls, files: Sequence[File]) -> Sequence[File]:
        from rawlog.formats.ambry.store import store

        return store.settle(files)

    @classmethod
    def rules(cls) -> Sequence[Rule[Any]]:
        from rawlog.formats.ambry.store import rules

        return rules.group_rules()

    @classmethod
    def replica_rules(cls) -> Sequence[Rule[Any]]:
        from rawlog.formats.ambry.store import replicas

        return replicas.rules()

    @classmethod
    def copies(cls, stores: Sequence[Store]) -> Sequence[Copies]:
        from rawlog.formats.ambry.store import replicas

        return replicas.copies(stores)

    @classmethod
    def compare(cls, a: Sequence[File], b: Sequence[File], selection: Any) -> Iterator[Difference | int]:
        from rawlog.formats.ambry.store import replicas

        return replicas.compare(a, b, selection)

    @classmethod
    def lookup(cls) -> Lookup:
        from rawlog.formats.ambry import keys

        return Lookup(named="blobs", columns=keys.id_columns, by_id=keys.rows_by_id)
