"""The verbs `repair` and `rebuild`, and the sound messages of a damaged store for verbs that only read.

What is whole is kept, in a copy that opens and verifies clean. Index, bloom and other derived files are rebuilt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rawlog.formats.ambry.store.diagnosis import Diagnosis, is_sound, segment_words
from rawlog.formats.ambry.store.rewrite import (
    Style,
    carry_out,
    other_files,
    probability_option,
    report_tails,
    unchanged_plan,
)
from rawlog.formats.ambry.store.state import (
    ORPHANS,
    fold,
)
from rawlog.formats.ambry.store.store import (
    LOG_FORMAT,
    BlobStore,
    blob_stores,
    with_logs,
)
from rawlog.io.output import Folder
from rawlog.model.errors import CorruptError
from rawlog.model.plan import Reading
from rawlog.model.report import Action, Entry, Report
from rawlog.model.store import Store
from rawlog.model.text import counted


def repair(files: Store, folder: Folder, options: Mapping[str, str]) -> Report:
    """Write a repaired copy of a store.

    Options: `max_entries`, `probability` as for a rebuild, `capacity` of segments whose headers are all damaged.
    """
    probability_option(options)
    [store] = with_logs(files)
    policy = Diagnosis(store, options)
    policy.decide()
    return carry_out(policy.plan(), folder, policy.report)


def rebuild(files: Store, folder: Folder, options: Mapping[str, str]) -> Report:
    """Copy a store with index and bloom files built from its log.

    Options: `max_entries` of an index file, `probability` of the blooms. Without them new files are cut as the old ones were. What the log
    does not say any more (the expiry of a blob whose PUT was compacted away) is taken from the old index, if that is sound. The
    unfinished message that a crash leaves at the end of the log is dropped and reported: Ambry would not start on it.
    CorruptError if the log is damaged: repair it first.
    """
    [store] = with_logs(files)
    probability_option(options)
    refuse_damage(store)
    plan, report = unchanged_plan(store, kept=other_files(store)), Report()
    report_tails(store, report)
    indexes = store.sound_indexes
    folded = fold(store.catalog, indexes, ORPHANS)
    plan.entries, plan.entry_segment = folded.entries, store.catalog.segment
    plan.style = Style.of(store, indexes, frozenset((number, index.start) for number, index in indexes), options)
    report.count("messages", len(store.catalog))
    return carry_out(plan, folder, report)


def refuse_damage(store: BlobStore) -> None:
    """CorruptError, for verbs that do not repair, if `repair` would drop, change, move or miss anything but an unfinished end."""
    for file in store.files:
        if file.format == LOG_FORMAT and file.problem is not None and file.place.state is None:
            raise CorruptError(f"it cannot be read: {file.problem}", path=file.path, format=LOG_FORMAT)
    policy = Diagnosis(store, {})
    policy.decide()
    policy.kept()
    losses = [entry for entry in policy.report.entries if entry.is_loss or entry.action is Action.MOVED]
    if losses:
        others = f", and {counted(len(losses) - 1, 'other fault')}" if len(losses) > 1 else ""
        raise CorruptError(
            f"{losses[0].reason}{others}: repair the store first",
            path=losses[0].path or store.folder,
            position=losses[0].start,
            format=LOG_FORMAT,
        )


def reading(files: Store) -> Reading:
    """The messages that `repair` would keep, and its report; empty for a sound store."""
    stores = blob_stores(files)
    if len(stores) != 1:
        return Reading()
    [store] = stores
    if not store.logs:
        lost = [(f"{store.folder}/{segment.log_name()}", parts) for segment, parts in store.lost_segments().items()]
        return Reading(entries=tuple(Entry(Action.LOST, segment_words(parts), path) for path, parts in lost))
    if is_sound(files, store):
        return Reading()
    policy = Diagnosis(store, {})
    policy.decide()
    pieces = tuple(policy.pieces(policy.kept()))
    entries = tuple(
        replace(entry, action=Action.LOST, reason=policy.restored[number]) if number in policy.restored else entry
        for number, entry in enumerate(policy.report.entries)
    )
    return Reading(pieces, policy.patches(), entries) if entries else Reading()
