"""Making the index and bloom files of a store anew from its log."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from rawlog.account import Account
from rawlog.errors import AccessError, OptionError, RawlogError
from rawlog.format import File
from rawlog.formats.ambry.bloom import Bloom, read_bloom
from rawlog.formats.ambry.index import Entries, IndexFile
from rawlog.formats.ambry.index_writer import MAX_ENTRIES, PROBABILITY, write_index_files
from rawlog.formats.ambry.layouts import BLOOM_TABLE
from rawlog.formats.ambry.paths import is_current_compaction, segment_of, start_of
from rawlog.formats.ambry.state import ORPHANS, Catalog, fold
from rawlog.formats.ambry.store import Store, read_catalog, sound_indexes, stores
from rawlog.formats.ambry.structures import Cursor
from rawlog.output import child, new_directory
from rawlog.storage import Source

OLD_ENTRY = 115
"""The least size of an entry before 2023-02; new files of a store whose old ones all have it keep to it."""


@dataclass(slots=True)
class Report(Account):
    """What was written, and what was left out: one line each."""

    files: list[str] = field(default_factory=list)
    messages: int = 0
    dropped: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether every byte was kept."""
        return not self.dropped

    def lines(self) -> list[str]:
        """What was left out, then the rest."""
        return [*self.dropped, *Account.lines(self)]


def copy_file(path: str, target: Path) -> None:
    """The bytes of a file, local or not, under another name."""
    with Source(path) as source, target.open("wb") as out:
        position = 0
        while piece := source.read(position, 8 << 20):
            out.write(piece)
            position += len(piece)


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


def rebuild_store(files: Sequence[File], target: str, options: Mapping[str, str] | None = None) -> Report:
    """Copy a store to `target` with index and bloom files built from its log.

    Options: `max_entries` an index file, `probability` of the blooms. Without them new files are cut as the old ones were. What the log
    does not tell any more (the expiry of a blob whose PUT was compacted away) is taken from the old index, if that is sound.
    DataError if the log is damaged: repair it first.
    """
    options = options or {}
    store = one_store(files)
    report = Report()
    with new_directory(target) as work:
        for file in store.logs:
            copy_file(file.path, child(work, file.path.rpartition("/")[2].removesuffix("_temp")))
        for file in store.others:
            if file.place.state is None and file.problem is None and not is_current_compaction(file.path):
                copy_file(file.path, child(work, file.path.rpartition("/")[2]))
        write_indexes(store, read_catalog(store, errors="raise"), work, options, report)
        report.files = sorted(path.name for path in work.iterdir())
    return report


def write_indexes(
    store: Store, catalog: Catalog, work: Path | None, options: Mapping[str, str], report: Report
) -> list[str]:
    """Index and bloom files of a store's messages into a directory; their names, which are all without `work`."""
    known = sound_indexes(store)
    sound = {(number, index.start): index for number, index in known}
    max_entries = number_option(options, "max_entries", None)
    probability = probability_option(options)
    most = max_entries or max((len(index.entries) for index in sound.values()), default=MAX_ENTRIES)
    style = _bloom_style(store, sound)
    sizes = [index.header.entry_size for _, index in known if index.header.version >= 2]
    folded = fold(catalog, known, ORPHANS)
    report.messages += len(catalog)

    def last_modified(segment: int, run: Entries) -> int | None:
        old = sound.get((segment, int(run.offset[0])))
        return old.header.last_modified if old is not None and old.end == run.offset[-1] + run.size[-1] else None

    return write_index_files(
        folded.entries,
        catalog.segment,
        store.segments(),
        work,
        max_entries=most,
        probability=probability,
        like=None if max_entries or "probability" in options else style.like,
        by_uuid=style.by_uuid,
        least=OLD_ENTRY if sizes and min(sizes) >= OLD_ENTRY else 0,
        starts=frozenset() if max_entries else frozenset(sound),
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


def _bloom_style(store: Store, sound: Mapping[tuple[int, int], IndexFile]) -> _Style:
    """What any sound bloom of a store shows: they all have the same dimensions, and hold whole keys or uuids."""
    segments = store.segments()
    for file in sorted(store.bloom_files, key=lambda one: start_of(one.path)):
        try:
            with Source(file.path) as source:
                bloom = read_bloom(Cursor(source.read(0, source.size)))
        except RawlogError:
            continue
        segment = segment_of(file.path)
        if not bloom.crc_ok or segment not in segments:
            continue
        index = sound.get((segments.index(segment), start_of(file.path)))
        if index is None:
            return _Style(bloom)
        keys = index.entries
        by_uuid = not bloom.have(keys.data, keys.starts, keys.sizes).all()
        return _Style(bloom, by_uuid and bool(bloom.have(keys.data, *keys.uuid_spans).all()))
    return _Style()
