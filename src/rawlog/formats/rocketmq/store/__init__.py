"""A RocketMQ store: its state, checks between its files, and rewriting."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rawlog.formats.rocketmq import paths
from rawlog.model.format import File, Lookup
from rawlog.model.store import Copies, Panel, Rewrite, Store

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from rawlog.io.output import Folder
    from rawlog.model.finding import Account, Rule
    from rawlog.model.format import Keep
    from rawlog.model.plan import Reading
    from rawlog.model.recovery import RescueOptions, Rescuer
    from rawlog.model.report import Report
    from rawlog.model.verb import Section

_SIZES = (
    "commitlog_size",
    "queue_size",
    "batch_queue_size",
    "ext_size",
    "index_slots",
    "index_entries",
    "delay_levels",
)


class MessageStore(Store):
    """The store directory of a broker: a commit log and all that is derived from it."""

    unit = "store"

    def system_name(self) -> str | None:
        return paths.store_name(self)

    def accounts(self) -> Sequence[Account]:
        from rawlog.formats.rocketmq.store import rules

        return rules.accounts(self)

    def reading(self) -> Reading:
        from rawlog.formats.rocketmq.store import repair

        return repair.reading(self)

    def overview(self) -> Iterable[Panel]:
        from rawlog.formats.rocketmq.store import store

        return store.overview(self)

    def inventory(self) -> Section | None:
        from rawlog.formats.rocketmq.store import store

        return store.inventory(self)

    def rows_of(self, table: str, options: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
        from rawlog.formats.rocketmq.store import state

        return state.FOLDS[table](self, options)

    # Rewriting ------------------------------------------------------------------------------------------------------------

    @Rewrite(options=("commitlog", *_SIZES))
    def rebuild(self, folder: Folder, options: Mapping[str, str]) -> Report:
        from rawlog.formats.rocketmq.store import rewrite

        return rewrite.rebuild(self, folder, options)

    @Rewrite(
        options=("policy", "move", "commitlog", *_SIZES),
        unrepaired=("rocketmq.commitlog.body", "rocketmq.commitlog.inner-batch", "rocketmq.timerlog.framing"),
    )
    def repair(self, folder: Folder, options: Mapping[str, str]) -> Report:
        from rawlog.formats.rocketmq.store import repair

        return repair.repair(self, folder, options)

    @Rewrite(options=_SIZES, keeps=True)
    def erase(self, folder: Folder, options: Mapping[str, str], keep: Keep | None = None) -> Report:
        from rawlog.formats.rocketmq.store.erase import erase

        return erase(self, folder, options, keep)

    @classmethod
    def stores(cls, verb: str, files: Sequence[File], options: Mapping[str, str]) -> Sequence[Store]:
        from rawlog.formats.rocketmq.store import rewrite

        return rewrite.stores(files, options)

    @classmethod
    def rescuer(cls, options: RescueOptions, target: Path) -> Rescuer:
        from rawlog.formats.rocketmq.store.rescue import Rescue

        return Rescue(options, target)

    @classmethod
    def copy_ids(cls, batch: pa.RecordBatch) -> pa.Array:
        from rawlog.formats.rocketmq import lookup

        return lookup.copy_ids(batch)

    # Several stores -------------------------------------------------------------------------------------------------------

    @classmethod
    def settle(cls, files: Sequence[File]) -> Sequence[File]:
        return paths.settle(files)

    @classmethod
    def rules(cls) -> Sequence[Rule[Any]]:
        from rawlog.formats.rocketmq.store import rules

        return rules.rules()

    @classmethod
    def copies(cls, stores: Sequence[Store]) -> Sequence[Copies]:
        from rawlog.formats.rocketmq.store import replicas

        return replicas.copies(stores)

    @classmethod
    def topics(cls, files: Sequence[File]) -> Iterable[str]:
        from rawlog.formats.rocketmq import lookup

        return lookup.known_topics(files)

    @classmethod
    def lookup(cls) -> Lookup:
        from rawlog.formats.rocketmq import lookup

        return Lookup(
            named="messages",
            columns=lookup.columns,
            by_id=lookup.by_id,
            by_key=lookup.by_key,
            frames=lookup.frames,
        )
