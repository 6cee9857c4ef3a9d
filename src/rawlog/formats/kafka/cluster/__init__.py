"""KRaft: a cluster's metadata. Its log is an ordinary Kafka log, read by Kafka's formats; here are the files next to it, what
their records mean, and the state they add up to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rawlog.formats.kafka import paths
from rawlog.formats.kafka.paths import METADATA_TOPIC, file_named, unknown_file
from rawlog.formats.kafka.tables import METADATA, STATE
from rawlog.model.format import Family, File, Format, UnknownFile
from rawlog.model.store import Copies, Panel, Rewrite, Store

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from rawlog.io.output import Folder
    from rawlog.model.difference import Difference
    from rawlog.model.finding import Account, Rule
    from rawlog.model.outline import Reading
    from rawlog.model.recovery import RescueOptions, Rescuer, RestoreOptions, Restorer
    from rawlog.model.report import Report

CHECKPOINT = Format(
    name="kraft.checkpoint",
    has_rules=True,
    title="snapshot of the cluster's metadata",
    files="<offset>-<epoch>.checkpoint, bootstrap.checkpoint",
    module=f"{__name__}.metadata",
    tables=(METADATA,),
    match=paths.is_checkpoint,
    checked=True,
)

QUORUM = Format(
    name="kraft.quorum",
    title="election state of a controller",
    files="quorum-state",
    module="rawlog.formats.kafka.texts:QUORUM",
    match=file_named("quorum-state"),
    whole=True,
)


FAMILY = Family(
    name="kraft",
    title="Kafka KRaft metadata",
    formats=(CHECKPOINT, QUORUM),
    store=f"{__name__}:MetadataLog",
    folds=(METADATA, *STATE),
    host="kafka",
    options=("atOffset", "atTimestamp", "showSecrets"),
)


class MetadataLog(Store):
    """A Kafka log with the snapshots and the vote next to it. Restoring and rescuing a cluster begins with it."""

    has_surroundings = True
    compared = "kraft.topics"

    def system_name(self) -> str | None:
        """The name of a metadata directory with a log or a snapshot; None for any other directory."""
        for file in self:
            is_loaded = file.place.topic == METADATA_TOPIC and file.place.state is None
            if is_loaded and file.format in (paths.LOG_FORMAT, paths.CHECKPOINT_FORMAT):
                return paths.METADATA_DIRECTORY
        return None

    def accounts(self) -> Sequence[Account]:
        from rawlog.formats.kafka.cluster import rules

        return rules.accounts(self)

    def reading(self) -> Reading:
        from rawlog.formats.kafka.cluster import rewrite

        return rewrite.reading(self)

    def overview(self) -> Iterable[Panel]:
        from rawlog.formats.kafka.cluster import view

        return view.overview(self)

    def rows_of(self, table: str, options: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
        from rawlog.formats.kafka.cluster import fold

        return fold.FOLDS[table](self, options)

    # Rewriting ------------------------------------------------------------------------------------------------------------

    @Rewrite(options=("policy",))
    def repair(self, folder: Folder, options: Mapping[str, str]) -> Report:
        from rawlog.formats.kafka.cluster import rewrite

        return rewrite.repair(self, folder, options)

    @Rewrite(options=("segment_bytes", "segment_ms", "segment_index_bytes", "index_interval_bytes"))
    def rebuild(self, folder: Folder, options: Mapping[str, str]) -> Report:
        from rawlog.formats.kafka.cluster import rewrite

        return rewrite.rebuild(self, folder, options)

    @Rewrite(options=("topic",))
    def compact(self, folder: Folder, options: Mapping[str, str]) -> Report:
        from rawlog.formats.kafka.cluster import rewrite

        return rewrite.compact(self, folder, options)

    @Rewrite()
    def erase(self, folder: Folder, options: Mapping[str, str]) -> Report:
        from rawlog.formats.kafka.cluster import rewrite

        return rewrite.compact(self, folder, options)

    @classmethod
    def stores(cls, verb: str, files: Sequence[File], options: Mapping[str, str]) -> Sequence[Store]:
        from rawlog.formats.kafka.cluster import rewrite

        find = rewrite.compacted_directories if verb == "compact" else rewrite.directories
        return find(files, options)

    @classmethod
    def join(cls, verb: str, stores: Sequence[Store], reports: Sequence[Report], folder: Folder) -> Report:
        from rawlog.formats.kafka.cluster import rewrite

        return rewrite.join(stores, reports, folder)

    @classmethod
    def unknown_file(cls, path: str, in_store: bool) -> UnknownFile:
        return unknown_file(path, in_store)

    @classmethod
    def restorer(cls, options: RestoreOptions, target: Path) -> Restorer:
        from rawlog.formats.kafka.cluster.restore import Restorer

        return Restorer(options, target)

    @classmethod
    def rescuer(cls, options: RescueOptions, target: Path) -> Rescuer:
        from rawlog.formats.kafka.cluster.rescue import Rescuer

        return Rescuer(options, target)

    @classmethod
    def rescues(cls, file: File) -> bool:
        """Files of a broker's or a controller's log directory."""
        return file.system in ("kafka", "kraft")

    # Several directories --------------------------------------------------------------------------------------------------

    @classmethod
    def takes(cls, table: str | None, file: File) -> bool:
        return paths.takes(table, file)

    @classmethod
    def summary(cls, file: File, group: Sequence[File], start: int, stop: int | None) -> Any:
        from rawlog.formats.kafka.cluster import metadata_log

        return metadata_log.summary(file, group, start, stop)

    @classmethod
    def units(cls, table: str, files: Sequence[File]) -> Mapping[str, Sequence[File]]:
        from rawlog.formats.kafka.cluster import metadata_log

        return metadata_log.units(table, files)

    @classmethod
    def rules(cls) -> Sequence[Rule[Any]]:
        from rawlog.formats.kafka.cluster import rules

        return rules.rules()

    @classmethod
    def copies(cls, stores: Sequence[Store]) -> Sequence[Copies]:
        from rawlog.formats.kafka.cluster import metadata_log

        return metadata_log.copies(stores)

    @classmethod
    def compare(cls, a: Sequence[File], b: Sequence[File], selection: Any) -> Iterator[Difference | int]:
        from rawlog.formats.kafka.cluster import view

        return view.compare_metadata(a, b, selection)
