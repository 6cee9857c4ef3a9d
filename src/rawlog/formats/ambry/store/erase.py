"""Erase blobs: a copy of a store with their content zeroed as by Ambry's hard delete, and deleted.

The id of the owner and the name of the file, which a hard delete leaves, become hyphens. Sizes and positions stay. A blob that was not
deleted gets a DELETE at the end of the log: no store serves it any more, and replicas that are copied from this one do not either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from rawlog.formats.ambry import LOG, keys
from rawlog.formats.ambry.layouts import SEGMENT_HEADER, Kind
from rawlog.formats.ambry.log import decode
from rawlog.formats.ambry.paths import Segment
from rawlog.formats.ambry.store.repair import refuse_damage
from rawlog.formats.ambry.store.rewrite import (
    Style,
    carry_out,
    other_files,
    report_tails,
    unchanged_plan,
)
from rawlog.formats.ambry.store.state import (
    DELETED,
    ORPHANS,
    PUT,
    STATES,
    Catalog,
    catalog_of_messages,
    fold,
)
from rawlog.formats.ambry.store.store import BlobStore, with_logs
from rawlog.formats.ambry.writer import hard_delete, update_message
from rawlog.io.output import Folder
from rawlog.io.storage import Source
from rawlog.io.walk import walk
from rawlog.model.errors import OptionError
from rawlog.model.format import Keep, Want
from rawlog.model.report import Action, Report
from rawlog.model.store import Store
from rawlog.model.table import RECORDS

Identity = tuple[int, int, int]


def erase(files: Store, folder: Folder, options: Mapping[str, str], keep: Keep | None = None) -> Report:
    """Copy a store with the content, user metadata, owner and file name of some blobs erased (§7), and a DELETE for each that was live.

    Option `blobs`: their ids, separated by commas; `keep` says no to rows of others. `now`: the time of the DELETEs. Log segments that the
    store does not read are left out, for they may have the same blobs. OptionError for an id that the log does not have, DataError if the
    log is damaged.
    """
    texts = [text.strip() for text in options.get("blobs", "").split(",") if text.strip()]
    named = {keys.identity_of(keys.from_text(text)): text for text in texts}
    [store] = with_logs(files)
    refuse_damage(store)
    blobs = {*named, *(_refused_blobs(store, keep) if keep is not None else ())}
    if not blobs and keep is None:
        raise OptionError("no blob named: nothing to erase")
    plan, report = unchanged_plan(store, kept=other_files(store)), Report()
    report_tails(store, report)
    catalog, rewritten, met = store.catalog, dict[int, bytes](), set()
    puts = np.flatnonzero(catalog.kind == PUT)
    for row, identity in zip(puts.tolist(), catalog.identity.take(puts).tuples, strict=True):
        if identity not in blobs:
            continue
        path, position, size = store.place(row)
        with Source(path) as source:
            rewritten[row] = hard_delete(source.read(position, size), texts=("owner_id", "filename"))
        met.add(identity)
        blob = keys.text_of(catalog.key(row))
        report.add(Action.REMOVED, f"content of blob {blob}", path, start=position, stop=position + size)
    missing = [text for identity, text in named.items() if identity not in met]
    if missing:
        raise OptionError(f"{len(missing)} of the blobs have no content in this store: {', '.join(missing[:3])}")
    report.count("erased", len(rewritten))
    deletes = list(_deletes(store, met, int(options.get("now", "0")), report))
    if deletes:
        plan.segments, plan.capacities, added = _append_messages(store, [raw for _, raw in deletes])
        rewritten |= {len(catalog) + number: raw for number, (_, raw) in enumerate(deletes)}
        plan.catalog = catalog.join(added)
        plan.segment = plan.catalog.segment
    if deletes or len(store.sound_indexes) < len(store.index_files) or len(store.blooms) < len(store.bloom_files):
        indexes = store.sound_indexes
        plan.entries, plan.entry_segment = fold(plan.catalog, indexes, ORPHANS).entries, plan.segment
        plan.style = Style.of(store, indexes, frozenset((number, index.start) for number, index in indexes), options)
    else:
        plan.kept = [*store.index_files, *store.bloom_files, *plan.kept]
    plan.rewritten = rewritten
    return carry_out(plan, folder, report)


def _refused_blobs(store: BlobStore, keep: Keep) -> Iterator[Identity]:
    """The blobs of which a row is not to stay."""
    columns = tuple(dict.fromkeys((*keep.columns, "key")))
    for file in store.logs:
        for frames in walk(file, LOG, errors="skip"):  # damage was refused
            for batch in decode(frames, Want(RECORDS.subset(columns), file, keep.limit)):
                rows = np.flatnonzero(~keep.test(batch.select(list(keep.columns))))
                for key in batch.column("key").take(rows).to_pylist():
                    yield keys.identity_of(key)


def _deletes(store: BlobStore, erased: Collection[Identity], now: int, report: Report) -> Iterator[tuple[int, bytes]]:
    """A DELETE for each erased blob that the store would still serve, or serve again after an undelete; with the row of its PUT."""
    folded = store.state
    states = folded.states(now)
    stored = np.flatnonzero((folded.answer >= 0) & (folded.put >= 0))
    catalog = folded.catalog
    identities = catalog.identity.take(folded.put[stored]).tuples
    for number, identity in zip(stored.tolist(), identities, strict=True):
        if identity not in erased or STATES[int(states[number])] == DELETED:
            continue
        put = int(folded.put[number])
        life = int(folded.life_version[folded.answer[number]])
        owner = {"account_id": int(catalog.account_id[put]), "container_id": int(catalog.container_id[put])}
        raw = update_message(Kind.DELETE, catalog.key(put), time=now, life_version=life, **owner)
        report.add(Action.ADDED, f"a DELETE of blob {keys.text_of(catalog.key(put))}", is_expected=True)
        report.count("deleted")
        yield put, raw


def _append_messages(
    store: BlobStore, messages: Sequence[bytes]
) -> tuple[Sequence[Segment], Sequence[int | None], Catalog]:
    """The segments of a store with messages appended, and the catalog of the new messages."""
    segments, capacities = list(store.segments), list(store.capacities)
    rows = store.catalog.rows_in(len(segments) - 1)
    ends = store.catalog.offset[rows] + store.catalog.size[rows]
    first = 0 if capacities[-1] is None else SEGMENT_HEADER.size
    end = int(ends.max(initial=first))
    pieces = []
    for raw in messages:
        capacity = capacities[-1]
        if capacity is not None and end + len(raw) > capacity:
            segments.append(Segment(segments[-1].position + 1, 0))
            capacities.append(capacity)
            end = first
        pieces.append((raw, len(segments) - 1, end))
        end += len(raw)
    return segments, capacities, catalog_of_messages(pieces)
