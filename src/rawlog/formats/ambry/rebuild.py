"""Making the index and bloom files of a store anew from its log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rawlog.account import Account
from rawlog.errors import OptionError, RawlogError
from rawlog.format import File
from rawlog.formats.ambry import keys
from rawlog.formats.ambry.bloom import Bloom, read_bloom
from rawlog.formats.ambry.index import IndexFile
from rawlog.formats.ambry.index_writer import MAX_ENTRIES, PROBABILITY, Run, bloom_of, encode_index, runs
from rawlog.formats.ambry.layouts import Kind
from rawlog.formats.ambry.paths import is_current_compaction, segment_of, start_of
from rawlog.formats.ambry.state import Entry, Ledger
from rawlog.formats.ambry.store import Store, entry_of, operations, read_messages, stores
from rawlog.formats.ambry.structures import Cursor
from rawlog.storage import Source, new_directory


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


def number_option(options: Mapping[str, str], name: str, default: int | None) -> int | None:
    """A whole number among options. OptionError if it is none."""
    text = options.get(name)
    if text is None:
        return default
    if not str(text).isdigit() or not int(text):
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
            copy_file(file.path, work / file.path.rpartition("/")[2].removesuffix("_temp"))
        for file in store.others:
            if file.place.state is None and file.problem is None and not is_current_compaction(file.path):
                copy_file(file.path, work / file.path.rpartition("/")[2])
        write_indexes(store, work, options, report)
        report.files = sorted(path.name for path in work.iterdir())
    return report


def log_entries(
    store: Store, indexes: Sequence[IndexFile], report: Report | None = None, errors: str = "raise"
) -> Iterator[Entry]:
    """The entries of all messages as a live store would have added them, in log order."""
    known: dict[tuple[int, int], Entry] = {}
    segments = store.segments()
    for index in indexes:
        if index.crc_ok and index.segment in segments:
            number = segments.index(index.segment)
            for at in range(len(index.entries)):
                entry = entry_of(index, at, number)
                known[entry.place] = entry
    ledger = Ledger()
    for number, file in enumerate(store.logs):
        for messages in read_messages(file, errors=errors):
            for operation in operations(messages, number):
                identity = keys.order(operation.key)
                orphan = operation.kind is not Kind.PUT and identity not in ledger.blobs
                remembered = known.get((number, operation.offset)) if orphan else None
                if (
                    remembered is not None
                    and remembered.kind is operation.kind
                    and keys.order(remembered.key) == identity
                ):
                    remembered.key = operation.key
                    ledger.add(remembered, identity)
                    entry = remembered
                else:
                    entry = ledger.apply(operation, identity)
                if report is not None:
                    report.messages += 1
                yield entry


def write_indexes(store: Store, work: Path, options: Mapping[str, str], report: Report, errors: str = "raise") -> None:
    """Index and bloom files of a store's log, into a directory."""
    indexes = store.indexes()
    segments = store.segments()
    sound = {
        (segments.index(index.segment), index.start): index
        for index in indexes
        if index.crc_ok and index.segment in segments
    }
    max_entries = number_option(options, "max_entries", None)
    starts = frozenset() if max_entries else frozenset(sound)
    most = max_entries or max((len(index.entries) for index in sound.values()), default=MAX_ENTRIES)
    like = None if max_entries or "probability" in options else _bloom_of(store)
    probability = float(options.get("probability", PROBABILITY))
    previous: Run | None = None
    for run in runs(log_entries(store, indexes, report, errors), max_entries=most, starts=starts):
        if previous is not None:
            _write(previous, store, work, most, probability, like, sealed=True)
        old = sound.get((run.segment, run.start))
        if old is not None and old.end == run.end:
            run.last_modified = old.header.last_modified
        previous = run
    if previous is not None:
        _write(previous, store, work, most, probability, like, sealed=False)


def _write(
    run: Run, store: Store, work: Path, most: int, probability: float, like: Bloom | None, *, sealed: bool
) -> None:
    segment = store.segments()[run.segment]
    (work / segment.index_name(run.start)).write_bytes(encode_index(run))
    if sealed:
        bloom = bloom_of(run, max_entries=most, probability=probability, like=like)
        (work / segment.index_name(run.start, "bloom")).write_bytes(bloom.encode())


def _bloom_of(store: Store) -> Bloom | None:
    """Any sound bloom of a store: they all have the same dimensions."""
    segments = store.segments()
    for file in sorted(store.bloom_files, key=lambda one: start_of(one.path)):
        try:
            with Source(file.path) as source:
                bloom = read_bloom(Cursor(source.read(0, source.size)))
        except RawlogError:
            continue
        if bloom.crc_ok and segment_of(file.path) in segments:
            return bloom
    return None
