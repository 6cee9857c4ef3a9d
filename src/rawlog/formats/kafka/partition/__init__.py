"""A partition: its state, checks between its files, and rewriting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rawlog.formats.kafka import paths
from rawlog.model.format import Elsewhere, File, UnknownFile
from rawlog.model.store import Copies, Rewrite, Store

if TYPE_CHECKING:
    import pyarrow as pa

    from rawlog.io.output import Folder
    from rawlog.model.finding import Account, Prediction, Rule, Startup
    from rawlog.model.format import Keep
    from rawlog.model.outline import Reading
    from rawlog.model.report import Report

_LIMITS = ("segment_bytes", "segment_ms", "segment_index_bytes", "index_interval_bytes")
#: What is wrong with batches whose checksum is right: they were written so, and stay as they are.
_UNREPAIRED = (
    "kafka.log.codec",
    "kafka.log.records",
    "kafka.log.offsets",
    "kafka.log.max-timestamp",
    "kafka.log.attributes",
    "kafka.log.producer-epoch",
    "kafka.log.sequence",
    "kafka.log.internal-record",
    "kafka.partition.topic-id",
    "kafka.directory.duplicate-partition",
)


class Partition(Store):
    """The directory of one partition in a log directory of a broker."""

    has_surroundings = True

    def system_name(self) -> str | None:
        """The name of a partition that a broker would load; None for other directories, and for the metadata log, which is KRaft's."""
        for file in self:
            place = file.place
            if file.format == "kafka.log" and place.state is None and place.topic not in (None, paths.METADATA_TOPIC):
                return f"{place.topic}-{place.partition}"
        return None

    def facts(self) -> tuple[str, ...]:
        from rawlog.formats.kafka.partition import replicas

        return replicas.facts(self)

    @classmethod
    def is_internal(cls, topic: str) -> bool:
        return topic.startswith("__")

    def accounts(self) -> Sequence[Account]:
        from rawlog.formats.kafka.partition import rules

        return rules.accounts(self)

    def predictions(self) -> Sequence[Prediction]:
        from rawlog.formats.kafka.partition import log_directories

        return log_directories.predictions(self)

    def reading(self) -> Reading:
        from rawlog.formats.kafka.partition.survey import reading

        return reading(self)

    def rows_of(self, table: str, options: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
        from rawlog.formats.kafka.internal import topics

        return topics.FOLDS[table](self, options)

    # Rewriting ------------------------------------------------------------------------------------------------------------

    @Rewrite(options=_LIMITS)
    def rebuild(self, folder: Folder, options: Mapping[str, str]) -> Report:
        from rawlog.formats.kafka.partition import rewrite

        return rewrite.rebuild(self, folder, options)

    @Rewrite(options=(*_LIMITS, "policy", "quarantine"), aside="quarantine", unrepaired=_UNREPAIRED)
    def repair(self, folder: Folder, options: Mapping[str, str], aside: Folder | None = None) -> Report:
        from rawlog.formats.kafka.partition.repair import repair

        return repair(self, folder, options, aside)

    @Rewrite(options=("index_interval_bytes",), keeps=True)
    def erase(self, folder: Folder, options: Mapping[str, str], keep: Keep | None = None) -> Report:
        from rawlog.formats.kafka.partition.erase import erase

        return erase(self, folder, options, keep)

    @Rewrite(
        options=(
            "delete_retention_ms",
            "min_compaction_lag_ms",
            "segment_bytes",
            "segment_index_bytes",
            "index_interval_bytes",
            "producer_id_expiration_ms",
            "memory",
            "now",
            "first_dirty",
            "roll",
            "topic",
            "at_once",
        )
    )
    def compact(self, folder: Folder, options: Mapping[str, str]) -> Report:
        from rawlog.formats.kafka.partition.compact import compact

        return compact(self, folder, options)

    def sift(self, folder: Folder, keep: Keep, options: Mapping[str, str]) -> Report:
        from rawlog.formats.kafka.partition.erase import sift

        return sift(self, folder, keep, options)

    @classmethod
    def stores(cls, verb: str, files: Sequence[File], options: Mapping[str, str]) -> Sequence[Store]:
        if verb == "compact":
            from rawlog.formats.kafka.partition import compact

            return compact.stores(files, options)
        from rawlog.formats.kafka.partition import rewrite

        return rewrite.partitions(files, options)

    @classmethod
    def join(cls, verb: str, stores: Sequence[Store], reports: Sequence[Report], folder: Folder) -> Report:
        from rawlog.formats.kafka.partition import rewrite

        return rewrite.join(stores, reports, folder)

    @classmethod
    def unknown_file(cls, path: str, in_store: bool) -> UnknownFile:
        return paths.unknown_file(path, in_store)

    # Log directories ------------------------------------------------------------------------------------------------------

    @classmethod
    def settle(cls, files: Sequence[File]) -> Sequence[File]:
        return paths.settle(files)

    @classmethod
    def takes(cls, table: str | None, file: File) -> bool:
        """A folded table is made of one internal topic; rules look at all files of the family's own."""
        if table is None:
            return file.system == "kafka"
        return file.format == "kafka.log" and file.place.topic == paths.INTERNAL[table] and file.place.state is None

    @classmethod
    def rules(cls) -> Sequence[Rule[Any]]:
        from rawlog.formats.kafka.partition import rules

        return rules.partition_rules()

    @classmethod
    def tree_rules(cls) -> Sequence[Rule[Any]]:
        from rawlog.formats.kafka.partition import rules

        return rules.directory_rules()

    @classmethod
    def replica_rules(cls) -> Sequence[Rule[Any]]:
        from rawlog.formats.kafka.partition import replicas

        return replicas.rules()

    @classmethod
    def copies(cls, stores: Sequence[Store]) -> Sequence[Copies]:
        from rawlog.formats.kafka.partition import replicas

        return replicas.copies(stores)

    @classmethod
    def absent(cls, files: Sequence[File]) -> Sequence[Account]:
        from rawlog.formats.kafka.partition import rules

        return rules.absent(files)

    @classmethod
    def startups(cls, files: Sequence[File]) -> Sequence[Startup]:
        from rawlog.formats.kafka.partition import log_directories

        return log_directories.startups(files)

    @classmethod
    def elsewhere(cls, files: Sequence[File]) -> Sequence[Elsewhere]:
        from rawlog.formats.kafka.partition import tiers

        return tiers.elsewhere(files)
