"""Making the index and bloom files of a store anew from its log."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from rawlog.core.errors import AccessError, OptionError, RawlogError
from rawlog.core.format import File
from rawlog.core.report import Account
from rawlog.core.status import Status
from rawlog.formats.ambry.bloom import Bloom, read_bloom
from rawlog.formats.ambry.index import Entries, IndexFile
from rawlog.formats.ambry.index_writer import MAX_ENTRIES, PROBABILITY, write_index_files
from rawlog.formats.ambry.layouts import BLOOM_TABLE
from rawlog.formats.ambry.paths import Segment, is_current_compaction, segment_of, start_of
from rawlog.formats.ambry.store.state import ORPHANS, Catalog, Fold, fold
from rawlog.formats.ambry.store.store import Store, read_catalog, sound_indexes, stores
from rawlog.formats.ambry.structures import Cursor
from rawlog.io.output import child, new_directory
from rawlog.io.storage import Source

OLD_ENTRY = 115
"""The least size of an entry before 2023-02; new files of a store whose old ones all have it keep to it."""


@dataclass(slots=True)
class Report(Account):
    """What was written, and what was left out: one line each.

    `dropped` are bytes, `lost` blobs and what is not known of them any more, `reconstructed` messages that were corrected or written
    again from what the index says.
    """

    files: list[str] = field(default_factory=list)
    messages: int = 0
    dropped: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    reconstructed: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether every byte was kept as it was."""
        return not (self.dropped or self.lost or self.reconstructed)

    def lines(self) -> list[str]:
        """What was left out, then the rest."""
        return [*self.dropped, *self.reconstructed, *self.lost, *Account.lines(self)]


def copy_file(path: str, target: Path, size: int | None = None) -> None:
    """The bytes of a file, local or not, under another name; with `size` only so many of them."""
    with Source(path) as source, target.open("wb") as out:
        position, end = 0, source.size if size is None else size
        while position < end and (piece := source.read(position, min(8 << 20, end - position))):
            out.write(piece)
            position += len(piece)


def copy_log(store: Store, number: int, target: Path) -> None:
    """A log segment up to the end of its last whole message: Ambry does not start on what a crash leaves after it."""
    end, _ = store.tails.get(number, (None, None))
    copy_file(store.logs[number].path, target, end)


def tail_lines(store: Store) -> list[str]:
    """What follows the last whole message of segments, one line each; `read_catalog` must have read the store."""
    lines = []
    for number, (position, status) in sorted(store.tails.items()):
        file = store.logs[number]
        lines.append(f"{log_name(file)}: byte {position:,}: {file.size - position:,} {tail_words(status)}")
    return lines


def tail_words(status: Status) -> str:
    """What the bytes after the last whole message are."""
    return {
        Status.TRUNCATED: "bytes of an unfinished message",
        Status.PADDING: "bytes of zeros",
    }.get(status, "bytes damaged")


def log_name(file: File) -> str:
    """The name that a log segment has once it is part of the store."""
    return file.path.rpartition("/")[2].removesuffix("_temp")


def copy_messages(store: Store, catalog: Catalog, rows: NDArray[np.int64], out: BinaryIO) -> None:
    """Write messages one behind the other; those that stand side by side in their segment are copied at once."""
    if not rows.size:
        return
    ends = catalog.offset[rows] + catalog.size[rows]
    begins = np.ones(rows.size, np.bool_)
    begins[1:] = (np.diff(catalog.segment[rows]) != 0) | (catalog.offset[rows][1:] != ends[:-1])
    firsts = np.flatnonzero(begins)
    lasts = np.append(firsts[1:], rows.size) - 1
    spans = zip(
        catalog.segment[rows[firsts]].tolist(), catalog.offset[rows[firsts]].tolist(), ends[lasts].tolist(), strict=True
    )
    opened: dict[int, Source] = {}
    try:
        for number, position, stop in spans:
            source = (
                opened.setdefault(number, Source(store.logs[number].path)) if number not in opened else opened[number]
            )
            while position < stop:
                piece = source.read(position, min(8 << 20, stop - position))
                if not piece:
                    raise AccessError(f"{source.path}: cut while it was read")
                out.write(piece)
                position += len(piece)
    finally:
        for source in opened.values():
            source.close()


def number_option(options: Mapping[str, str], name: str, default: int | None) -> int | None:
    """A whole number among options. OptionError if it is none."""
    text = options.get(name)
    if text is None:
        return default
    if not re.fullmatch(r"[0-9]{1,18}", str(text)) or not int(text):
        raise OptionError(f"{name} {text!r}: a number above 0 expected")
    return int(text)


def one_store(files: Sequence[File]) -> Store:
    """The store among files. OptionError if there is none, or several."""
    found = [store for store in stores(files) if store.logs]
    if len(found) != 1:
        raise OptionError(f"{len(found)} Ambry stores with a log: name one")
    return found[0]


def lost_lines(files: Sequence[File]) -> list[str]:
    """What the index files still know and the log does not have any more, one line each: an index built from the log forgets it."""
    from rawlog.formats.ambry.store.checks import index_end, lost_segment

    marks = [mark for one in (lost_segment, index_end) for mark in one.check(files)]
    return [
        f"{(mark.path or '').rpartition('/')[2]}: {mark.message}; `rawlog repair` keeps what the index files say of them"
        for mark in marks
    ]


def rebuild_store(files: Sequence[File], target: str, options: Mapping[str, str] | None = None) -> Report:
    """Copy a store to `target` with index and bloom files built from its log.

    Options: `max_entries` an index file, `probability` of the blooms. Without them new files are cut as the old ones were. What the log
    does not tell any more (the expiry of a blob whose PUT was compacted away) is taken from the old index, if that is sound. The
    unfinished message that a crash leaves at the end of the log is dropped and reported: Ambry would not start on it.
    DataError if the log is damaged: repair it first.
    """
    options = options or {}
    store = one_store(files)
    report = Report()
    catalog = read_catalog(store, errors="raise")
    report.dropped += tail_lines(store)
    report.lost += lost_lines(files)
    with new_directory(target) as work:
        for number, file in enumerate(store.logs):
            copy_log(store, number, child(work, log_name(file)))
        for file in store.others:
            if file.place.state is None and file.problem is None and not is_current_compaction(file.path):
                copy_file(file.path, child(work, file.path.rpartition("/")[2]))
        write_indexes(store, catalog, work, options, report)
        report.files = sorted(path.name for path in work.iterdir())
    return report


def write_indexes(
    store: Store, catalog: Catalog, work: Path | None, options: Mapping[str, str], report: Report
) -> list[str]:
    """Index and bloom files of a store's messages into a directory; their names, which are all without `work`."""
    known = sound_indexes(store)
    report.messages += len(catalog)
    starts = frozenset((number, index.start) for number, index in known)
    folded = fold(catalog, known, ORPHANS)
    return write_like(store, known, folded, store.segments(), starts, work, options)


def write_like(
    store: Store,
    known: Sequence[tuple[int, IndexFile]],
    folded: Fold,
    segments: Sequence[Segment],
    starts: frozenset[tuple[int, int]],
    work: Path | None,
    options: Mapping[str, str],
) -> list[str]:
    """Index and bloom files of messages, made as the store's own (`known`, with the numbers of their segments) were; their names."""
    sound = {(number, index.start): index for number, index in known}
    max_entries = number_option(options, "max_entries", None)
    probability = probability_option(options)
    most = max_entries or max((len(index.entries) for _, index in known), default=MAX_ENTRIES)
    style = _bloom_style(store, {(index.segment, index.start): index for _, index in known})
    sizes = [index.header.entry_size for _, index in known if index.header.version >= 2]

    def last_modified(segment: int, run: Entries) -> int | None:
        old = sound.get((segment, int(run.offset[0])))
        return old.header.last_modified if old is not None and old.end == run.offset[-1] + run.size[-1] else None

    return write_index_files(
        folded.entries,
        folded.catalog.segment,
        segments,
        work,
        max_entries=most,
        probability=probability,
        like=None if max_entries or "probability" in options else style.like,
        by_uuid=style.by_uuid,
        least=OLD_ENTRY if sizes and min(sizes) >= OLD_ENTRY else 0,
        starts=frozenset() if max_entries else starts,
        last_modified=last_modified,
    )


def probability_option(options: Mapping[str, str]) -> float:
    """The option `probability` of blooms. OptionError if Ambry has no numbers for it."""
    try:
        chosen = float(options.get("probability", PROBABILITY))
    except ValueError:
        chosen = 0.0
    if chosen not in BLOOM_TABLE:
        known = ", ".join(map(str, BLOOM_TABLE))
        raise OptionError(f"probability {options.get('probability')!r}: one of {known} expected")
    return chosen


@dataclass(frozen=True, slots=True)
class _Style:
    """How a store makes its blooms: one to be like, and whether they hold uuids only."""

    like: Bloom | None = None
    by_uuid: bool = False


def _bloom_style(store: Store, sound: Mapping[tuple[Segment, int], IndexFile]) -> _Style:
    """What any sound bloom of a store shows: they all have the same dimensions, and hold whole keys or uuids."""
    for file in sorted(store.bloom_files, key=lambda one: start_of(one.path)):
        bloom, segment = sound_bloom(file), segment_of(file.path)
        if bloom is None or segment is None or segment not in store.segments():
            continue
        index = sound.get((segment, start_of(file.path)))
        if index is None:
            return _Style(bloom)
        keys = index.entries
        by_uuid = not bloom.have(keys.data, keys.starts, keys.sizes).all()
        return _Style(bloom, by_uuid and bool(bloom.have(keys.data, *keys.uuid_spans).all()))
    return _Style()


def sound_bloom(file: File) -> Bloom | None:
    """The bloom in a file, if it can be read and its checksum is right."""
    try:
        with Source(file.path) as source:
            bloom = read_bloom(Cursor(source.read(0, source.size)))
    except RawlogError:
        return None
    return bloom if bloom.crc_ok else None
