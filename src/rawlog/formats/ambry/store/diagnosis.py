"""The diagnosis of a store: which messages are sound, foreign, copied or lost, and how its log segments were named.

Every verb that says or does something about damage goes by it. After damage the next sound message header is searched for. Index files are
evidence: an update that the log has lost is written again from its index entry, a damaged blob id is corrected, and a lost blob is reported
by its id.
"""

from __future__ import annotations

import bisect
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.ambry import Segment, keys
from rawlog.formats.ambry.layouts import NONE, SEGMENT_HEADER, Kind
from rawlog.formats.ambry.store.evidence import (
    Naming,
    agrees,
    elect_partition,
    gather,
    ids_in,
    majority_partition,
    message_of,
    partitions,
    replace_key,
    with_partition,
)
from rawlog.formats.ambry.store.rewrite import (
    DESCRIPTOR_NAME,
    StorePlan,
    Style,
    descriptor,
    number_option,
    other_files,
)
from rawlog.formats.ambry.store.rules import VIOLATIONS, denied_ids, group_rules
from rawlog.formats.ambry.store.state import (
    ALWAYS,
    DELETE,
    ORPHANS,
    PUT,
    Catalog,
    Damage,
    LogSummary,
    catalog_of,
    catalog_of_messages,
    fold,
    forgotten_expiries,
    is_refused,
    read_log,
)
from rawlog.formats.ambry.store.store import (
    COMPACTION_FORMAT,
    POLICY_FORMAT,
    BlobStore,
    lost_words,
    may_lack_put,
)
from rawlog.formats.ambry.structures import DESCRIPTOR
from rawlog.formats.ambry.writer import CAPACITY
from rawlog.io.storage import Source
from rawlog.model.finding import Severity
from rawlog.model.format import File
from rawlog.model.outline import Patch, Piece
from rawlog.model.report import Action, Report
from rawlog.model.store import Store
from rawlog.model.text import counted

MOST_SEARCHED = 64 << 20
"""Damaged bytes at a place that are searched for blob ids."""


def segment_words(index_files: Sequence[File]) -> str:
    """What is said of a log segment of which only index files are there."""
    names = ", ".join(file.path.rpartition("/")[2] for file in index_files)
    return f"the log segment is not there; its index files are: {names}"


def is_sound(files: Store, store: BlobStore) -> bool:
    """Whether the summaries of a store show no damage, misplaced file or loss. Reads no log segment."""
    summaries = [store.summaries.get(file.path) for file in store.logs]
    if any(file.problem is not None for file in store.files):
        return False
    for summary in summaries:
        if not isinstance(summary, LogSummary) or not summary.sums:
            return False
        if summary.damages or summary.unsound or summary.error or summary.lacks_header:
            return False
    if (
        store.partition is not None
        and (partitions(store.catalog.key_data, store.catalog.key_start) != store.partition).any()
    ):
        return False
    marks = ((mark.severity or rule.severity) for rule in group_rules() for mark in rule.check(files))
    return all(severity is Severity.INFO for severity in marks)


def _capacity(read: Sequence[LogSummary], options: Mapping[str, str]) -> int:
    """The capacity that most segment headers name."""
    capacities = [summary.capacity for summary in read if summary.capacity is not None]
    largest = max((summary.file.size for summary in read), default=0)
    default = max(set(capacities), key=capacities.count) if capacities else max(CAPACITY, largest)
    return number_option(options, "capacity", default) or default


@dataclass(slots=True)
class _Extra:
    """A message to write that is not in the log as it is: corrected, or restored from index entry `entry` (-1: none)."""

    raw: bytes
    segment: int
    offset: int
    entry: int
    is_there: bool = False


@dataclass(frozen=True, slots=True)
class Loss:
    """A lost message: its blob, kind and life version from an index file (None: unknown), and its place."""

    key: bytes
    kind: int | None
    life_version: int | None
    path: str
    start: int
    stop: int
    reason: str


@dataclass(slots=True)
class KeptMessages:
    """What a repaired store has: its messages at their places in the source, and in `ranked` with the numbers of the new segments.

    `number` is that of each row's extra (-1: none), `entry_rows` the row of the message of each index entry (-1: none).
    """

    segments: list[Segment]
    merged: Catalog
    ranked: Catalog
    number: NDArray[np.int64]
    entry_rows: NDArray[np.int64]


class Diagnosis:
    """What becomes of a store: its segments with their names, and the messages in each."""

    def __init__(self, store: BlobStore, options: Mapping[str, str]) -> None:
        self.store, self.options, self.report = store, options, Report()
        self.read = self.read_logs()
        self.capacity = _capacity(self.read, options)
        self.catalog = catalog_of([summary.columns for summary in self.read])
        self.damages = [(number, damage) for number, summary in enumerate(self.read) for damage in summary.damages]
        self.evidence = gather(store)
        #: Messages that are not kept as they are, by row; what is written in their place, and more.
        self.dead = np.zeros(len(self.catalog), np.bool_)
        self.extras: list[_Extra] = []
        #: The row of the message of each index entry.
        self.rows = self.catalog.rows_of(self.evidence.entries)
        #: The blobs that the report names.
        self.reported: set[tuple[int, int, int]] = set()
        self.losses: list[Loss] = []
        #: UNDELETEs of blobs of which nothing says any more when they expire.
        self.forgotten: list[Loss] = []
        #: Updates that are written again, by the number of their entry in the report: the loss that it is where no store is written.
        self.restored: dict[int, Loss] = {}
        #: Messages of other partitions, and the segments, by number, that have no others.
        self.aside: list[tuple[int, Damage]] = []
        #: The positions of segments of which nothing is there.
        self.gaps: list[int] = []
        self.foreign: set[int] = set()

    def read_logs(self) -> Sequence[LogSummary]:
        """What each log segment says, in order."""
        return [read_log(file, check=True) for file in self.store.logs]

    def decide(self) -> None:
        """Decide all, and report it."""
        self._settle_partition()
        headers = [number for number, summary in enumerate(self.read) if summary.lacks_header]
        naming = Naming(self.store, self.catalog, self.evidence, self.rows, self.trusted, self.damages, headers)
        naming.settle()
        #: Names of the segments that are written; the first ones are those that were read, in their order.
        self.names = naming.names
        self.where, self.logs_of_files = naming.where, naming.logs_of_files
        for number, name, why in naming.renamed:
            path, size = self.store.logs[number].path, self.store.logs[number].size
            self.report.add(Action.MOVED, f"written as {name.log_name()}: {why}", path, start=0, stop=size)
        self._locate_entries()
        self._correct_ids()
        self._correct_partitions()
        self._check_blooms()
        self._restore_updates()
        self._report_damages()

    def _path(self, segment: Segment) -> str:
        """The path that the log of a segment has, or had, in the source."""
        return f"{self.store.folder}/{segment.log_name()}"

    def _add(self, action: Action, reason: str, number: int, start: int, stop: int) -> None:
        """Report something about bytes of a log segment that was read."""
        self.report.add(action, reason, self.store.logs[number].path, start=start, stop=stop)

    def _settle_partition(self) -> None:
        """The partition of the store; messages of others are set aside."""
        evidence = self.evidence
        self.named = partitions(self.catalog.key_data, self.catalog.key_start)
        of_entries = partitions(evidence.entries.data, evidence.entries.starts)
        by_index = [
            majority_partition(of_entries[evidence.is_sound & (evidence.file == n)]) for n in range(len(evidence.files))
        ]
        by_segment = [majority_partition(self.named[self.catalog.rows_in(number)]) for number in range(len(self.read))]
        self.partition = elect_partition(self.store.partition, [*by_index, *by_segment]) or 0
        if self.store.partition not in (None, self.partition):
            reason = f"the directory names partition {self.store.partition}; the store is of partition {self.partition}"
            self.report.add(Action.MOVED, reason, self.store.folder, is_expected=True)
        #: Entries that say something of this store; those of another partition are of a file that does not belong here.
        self.trusted = evidence.is_sound & (of_entries == self.partition)
        self._set_foreign_aside()

    def _set_foreign_aside(self) -> None:
        """Set aside messages of other stores, and segments that are copies of others."""
        catalog = self.catalog
        aside = self._foreign_messages()
        for number in np.unique(catalog.segment[aside]).tolist():
            inside = np.flatnonzero(aside & (catalog.segment == number))
            for rows in np.split(inside, np.flatnonzero(np.diff(inside) != 1) + 1):
                others = ", ".join(map(str, np.unique(self.named[rows]).tolist()))
                why = f"{counted(rows.size, 'message')} belong to partition {others}; this store holds partition {self.partition}"
                self._set_aside(number, rows, why)
        for number, original in self._copied_segments().items():
            rows = np.arange(len(catalog))[catalog.rows_in(number)]
            aside[rows] = True
            self._set_aside(number, rows, f"a copy of {self.store.segments[original].log_name()}")
        if not aside.any():
            return
        numbers, left = np.unique(catalog.segment[aside]), np.unique(catalog.segment[~aside])
        self.foreign = set(np.setdiff1d(numbers, left).tolist())
        self.damages += self.aside
        kept = np.flatnonzero(~aside)
        self.catalog, self.named = catalog.take(kept), self.named[kept]
        self.dead = np.zeros(len(self.catalog), np.bool_)
        self.rows = self.catalog.rows_of(self.evidence.entries)

    def _set_aside(self, number: int, rows: NDArray[np.int64], why: str) -> None:
        offset, size = self.catalog.offset[rows], self.catalog.size[rows]
        damage = Damage(int(offset[0]), int(offset[-1] + size[-1]), f"{why}: set aside")
        self.aside.append((number, damage))

    def _foreign_messages(self) -> NDArray[np.bool_]:
        """Which messages are of another partition: their file, or a part of it, is of another store.

        A single message that names another partition has a damaged blob id, and so has one whose blob is known here.
        """
        catalog = self.catalog
        foreign: NDArray[np.bool_] = self.named != self.partition
        foreign[self.rows[self.trusted & (self.rows >= 0)]] = False
        if not foreign.any():
            return foreign
        blobs = set(catalog.identity.take(np.flatnonzero(self.named == self.partition)).tuples)
        rows = np.flatnonzero(foreign)
        foreign[rows] = [blob not in blobs for blob in catalog.identity.take(rows).tuples]
        for number in np.unique(catalog.segment[foreign]).tolist():
            inside = np.flatnonzero(foreign & (catalog.segment == number))
            others, counts = np.unique(self.named[inside], return_counts=True)
            foreign[inside[np.isin(self.named[inside], others[counts == 1])]] = False
        return foreign

    def _copied_segments(self) -> dict[int, int]:
        """Segments whose messages another segment has at the same places, each with that other segment.

        The one that index files know is the original, else the first.
        """
        alike: dict[tuple[int, ...], list[int]] = {}
        for number in range(len(self.read)):
            rows = self.catalog.rows_in(number)
            if rows.start < rows.stop:
                alike.setdefault(self._fact(rows.start), []).append(number)
        originals: dict[int, int] = {}
        for numbers in alike.values():
            ranked = sorted(numbers, key=lambda number: (-self._indexed_messages(number), number))
            for number in ranked[1:]:
                rows_of_copy, rows_of_original = self.catalog.rows_in(number), self.catalog.rows_in(ranked[0])
                count = rows_of_copy.stop - rows_of_copy.start
                if count <= rows_of_original.stop - rows_of_original.start and all(
                    self._fact(rows_of_copy.start + at) == self._fact(rows_of_original.start + at)
                    for at in range(count)
                ):
                    originals[number] = ranked[0]
        return originals

    def _fact(self, row: int) -> tuple[int, ...]:
        """What tells a message from others, and its place in its segment."""
        catalog, identity = self.catalog, self.catalog.identity
        columns = (identity.group, identity.high, identity.low, catalog.kind, catalog.life_version, catalog.size)
        return tuple(int(column[row]) for column in (*columns, catalog.time, catalog.offset))

    def _indexed_messages(self, number: int) -> int:
        """How many messages of a segment the index files of its name have at their places."""
        evidence, entries = self.evidence, self.evidence.entries
        segment = self.store.segments[number]
        if segment not in evidence.segments:
            return 0
        entry_rows = np.flatnonzero(self.trusted & (evidence.segment == evidence.segments.index(segment)))
        rows = self.catalog.rows_at(number, entries.offset[entry_rows])
        is_stored = rows >= 0
        same = entries.identities.take(entry_rows[is_stored]).equal(self.catalog.identity.take(rows[is_stored]))
        return int(same.sum())

    def _locate_entries(self) -> None:
        """Find the entries whose messages are in the segment they name, by segment and offset."""
        evidence, rows = self.evidence, np.maximum(self.rows, 0)
        inside = (self.rows >= 0) & (self.catalog.segment[rows] == self.where) if len(self.catalog) else self.rows >= 0
        good = np.flatnonzero(inside)
        self.located = good[np.lexsort((evidence.entries.offset[good], self.where[good]))]
        self.places = list(
            zip(self.where[self.located].tolist(), evidence.entries.offset[self.located].tolist(), strict=True)
        )

    # Blob ids

    def _is_lost(self) -> NDArray[np.bool_]:
        """Which trusted entries have no message."""
        result: NDArray[np.bool_] = (self.rows < 0) & self.trusted
        return result

    def _neighbours(self, entry: int) -> list[tuple[int, int]]:
        """The located entries next to an entry in its segment: where each message is, and where its entry says."""
        entry_place = (int(self.where[entry]), int(self.evidence.entries.offset[entry]))
        at = bisect.bisect_left(self.places, entry_place)
        return [
            (int(self.catalog.offset[self.rows[self.located[place]]]), self.places[place][1])
            for place in (at - 1, at)
            if 0 <= place < len(self.places) and self.places[place][0] == entry_place[0]
        ]

    def _shifts(self, entry: int) -> list[int]:
        """By how many bytes the messages around an entry's are away from where their entries say; 0 first."""
        return list(dict.fromkeys([0, *(actual - expected for actual, expected in self._neighbours(entry))]))

    def _place(self, entry: int) -> int:
        """Where the lost message of an entry was: between the messages of the located entries around it."""
        offset = int(self.evidence.entries.offset[entry])
        place = offset
        for actual, expected in self._neighbours(entry):
            place = offset + actual - expected if expected < offset else min(place, actual - 1)
        return place

    def _sources(self) -> Iterator[tuple[int, Source]]:
        for number, file in enumerate(self.store.logs):
            with Source(file.path) as source:
                yield number, source

    def _correct_ids(self) -> None:
        """Give sound messages with a wrong key the key of their index entry.

        An index file repeats the key of a blob's first message in it; a later message may have another key of the same blob.
        """
        evidence, entries = self.evidence, self.evidence.entries
        lost_entries = np.flatnonzero(self._is_lost() | (evidence.is_weak & (self.rows < 0)))
        has_other_key = self.catalog.keys_differ(self.rows, entries) & self.trusted
        foreign = np.zeros(len(entries), np.bool_)
        if len(self.catalog):
            foreign = self.named[np.maximum(self.rows, 0)] != self.partition
        has_other_key &= evidence.is_first | foreign
        for number, source in self._sources():
            for entry in np.flatnonzero(has_other_key & (self.where == number)).tolist():
                row = int(self.rows[entry])
                if int(self.catalog.segment[row]) == number:
                    raw = replace_key(source, int(self.catalog.offset[row]), entries.key(entry))
                    if raw is not None:
                        self._replace(number, row, int(self.catalog.offset[row]), raw, entry, evidence.name(entry))
            for entry in lost_entries[self.where[lost_entries] == number].tolist():
                self._correct_id(number, source, entry)

    def _correct_id(self, number: int, source: Source, entry: int) -> None:
        evidence = self.evidence
        key, offset = evidence.entries.key(entry), int(evidence.entries.offset[entry])
        for shift in self._shifts(entry):
            raw = replace_key(source, offset + shift, key)
            if raw is None or not agrees(catalog_of_messages([(raw, 0, 0)]), 0, evidence, entry):
                continue
            row = int(self.catalog.rows_at(number, np.array([offset + shift]))[0])
            if row >= 0 and (self.dead[row] or (self.rows == row).any()):
                continue
            bloom = evidence.bloom(entry)
            old = None if row < 0 else self.catalog.key(row)
            confirmed = bloom is not None and bloom.has_key(key)
            denied = bloom is not None and old is not None and not bloom.has_key(old)
            if (confirmed or bloom is None) if evidence.is_sound[entry] else (confirmed and (denied or old is None)):
                self._replace(number, row, offset + shift, raw, entry, evidence.name(entry))
            elif not (bloom is not None and old is not None and bloom.has_key(old) and not confirmed):
                text = keys.text_of(key) if old is None else f"{keys.text_of(old)} or {keys.text_of(key)}"
                reason = f"blob {text}: the message and {evidence.name(entry)} disagree on the id"
                self._add(Action.LOST, reason, number, offset + shift, offset + shift + len(raw))
            return

    def _replace(self, number: int, row: int, position: int, raw: bytes, entry: int, why: str) -> None:
        """Write a message with another key in the place of what is there."""
        catalog = catalog_of_messages([(raw, 0, 0)])
        was = "it cannot be read"
        if row >= 0:
            self.dead[row] = True
            was = f"it was {keys.text_of(self.catalog.key(row))}"
        reason = f"blob id corrected to {keys.text_of(catalog.key(0))} by {why}: {was}"
        self._add(Action.CHANGED, reason, number, position, position + len(raw))
        self.extras.append(_Extra(raw, number, position, entry, is_there=True))
        self._uncover(number, position, position + len(raw))

    def _uncover(self, number: int, start: int, stop: int) -> None:
        """Bytes that are a message after all are not damaged."""
        remaining = list[tuple[int, Damage]]()
        for log, damage in self.damages:
            if log != number or damage.stop <= start or damage.start >= stop:
                remaining.append((log, damage))
                continue
            for from_, to in ((damage.start, start), (stop, damage.stop)):
                if from_ < to:
                    remaining.append((number, Damage(from_, to, "damaged bytes")))
        self.damages = remaining

    def _correct_partitions(self) -> None:
        """Correct keys of a foreign partition, if another message or entry has the key, or only one byte differs."""
        foreign = np.flatnonzero((self.named != self.partition) & ~self.dead)
        if not foreign.size or foreign.size * 2 >= len(self.catalog):
            return
        entries = self.evidence.entries
        stored_keys = {entries.key(entry) for entry in np.flatnonzero(self.trusted).tolist()}
        right = np.flatnonzero(self.named == self.partition)
        whole = {row: self.catalog.key(row) for row in right.tolist()}
        stored_keys |= set(whole.values())
        same = dict(zip(self.catalog.identity.take(right).tuples, whole.values(), strict=True))
        for number, source in self._sources():
            for row in foreign[self.catalog.segment[foreign] == number].tolist():
                old = self.catalog.key(row)
                key = with_partition(old, self.partition)
                if key not in stored_keys:
                    key = same.get(keys.identity_of(old), key)
                if (
                    key not in stored_keys
                    and sum(old_byte != new_byte for old_byte, new_byte in zip(old, key, strict=True)) > 1
                ):
                    continue
                raw = replace_key(source, int(self.catalog.offset[row]), key)
                if raw is not None:
                    entry = next(iter(np.flatnonzero(self.rows == row).tolist()), NONE)
                    why = "the partition of the other messages"
                    self._replace(number, row, int(self.catalog.offset[row]), raw, entry, why)

    def _check_blooms(self) -> None:
        """Report ids denied by the bloom of an unreadable index file: one of their bytes may be damaged."""
        damaged = {number for number, _ in self.damages}
        if self.names != self.store.segments:
            return
        for number in range(len(self.names)):
            rows = denied_ids(self.store, self.catalog, number) if number not in damaged else np.empty(0, np.int64)
            for row in rows[~self.dead[rows]].tolist():
                position, blob = int(self.catalog.offset[row]), keys.text_of(self.catalog.key(row))
                reason = f"blob {blob}: its bloom does not know this id, which may be damaged"
                self._add(Action.LOST, reason, number, position, position + int(self.catalog.size[row]))

    # What was lost

    def _restore_updates(self) -> None:
        """Write lost updates again from their index entries, and report blobs with lost content."""
        evidence, entries = self.evidence, self.evidence.entries
        fixed = {extra.entry for extra in self.extras}
        damaged = {number for number, _ in self.damages} | set(self._cut_segments())
        lost = np.array(
            [
                entry
                for entry in np.flatnonzero((self.rows < 0) & (self.trusted | evidence.is_weak)).tolist()
                if entry not in fixed and (int(self.where[entry]) < 0 or int(self.where[entry]) in damaged)
            ],
            np.int64,
        )
        sound = evidence.is_sound[lost]
        for entry in lost[~sound].tolist():
            self._report_lost(entry, f" if {evidence.name(entry)}, whose checksum is wrong, is right")
        lost = lost[sound]
        identity = entries.identities.take(lost).tuples
        kept = self.catalog.take(np.flatnonzero(~self.dead & (self.catalog.kind == PUT)))
        has_put = set(kept.identity.tuples) | {blob for extra in self.extras for blob in _put_identity(extra.raw)}
        lost_blobs = {
            blob for blob, entry in zip(identity, lost.tolist(), strict=True) if int(entries.kind[entry]) == PUT
        } - has_put
        newest = self._newest(lost)
        handled = set[tuple[tuple[int, int, int], int, int]]()
        for blob, entry in zip(identity, lost.tolist(), strict=True):
            kind = int(entries.kind[entry])
            mark = (blob, kind, int(entries.life_version[entry]))
            if mark in handled:
                continue
            handled.add(mark)
            if kind == PUT or (blob in lost_blobs and not (kind == DELETE and newest[blob] == entry)):
                self._report_lost(entry, "")
            else:
                self._restore(entry)

    def _newest(self, lost: NDArray[np.int64]) -> dict[tuple[int, int, int], int]:
        """The last of the lost entries of each blob, NONE if a message after it is there."""
        evidence, entries = self.evidence, self.evidence.entries
        segments = [segment.order for segment in evidence.segments]
        newest: dict[tuple[int, int, int], tuple[tuple[int, int], int, int]] = {}
        for blob, entry in zip(entries.identities.take(lost).tuples, lost.tolist(), strict=True):
            place = (segments[int(evidence.segment[entry])], int(entries.offset[entry]), entry)
            newest[blob] = max(newest.get(blob, place), place)
        names = [name.order for name in self.names]
        for row, blob in enumerate(self.catalog.identity.tuples):
            if blob in newest and not self.dead[row] and int(self.catalog.kind[row]) != PUT:
                place = (names[int(self.catalog.segment[row])], int(self.catalog.offset[row]), NONE)
                newest[blob] = max(newest[blob], place)
        return {blob: place[2] for blob, place in newest.items()}

    def _cut_segments(self) -> Iterator[int]:
        """The segments that end before their index does."""
        for number, index in zip(self.logs_of_files.tolist(), self.evidence.files, strict=True):
            if number >= 0 and index.crc_ok and index.end > self.store.logs[number].size:
                yield number

    def _report_lost(self, entry: int, condition: str) -> None:
        entries = self.evidence.entries
        kind, size, offset = Kind(int(entries.kind[entry])).name, int(entries.size[entry]), int(entries.offset[entry])
        segment = self.evidence.segments[int(self.evidence.segment[entry])]
        self.reported.add(keys.identity_of(entries.key(entry)))
        key, life_version = entries.key(entry), int(entries.life_version[entry])
        reason = f"blob {keys.text_of(key)}: its {kind} is lost{condition}"
        self._lose(
            Loss(key, int(entries.kind[entry]), life_version, self._path(segment), offset, offset + size, reason)
        )

    def _lose(self, loss: Loss) -> None:
        self.losses.append(loss)
        self._report_loss(loss)

    def _report_loss(self, loss: Loss) -> None:
        self.report.add(Action.LOST, loss.reason, loss.path, start=loss.start, stop=loss.stop)

    def _restore(self, entry: int) -> None:
        evidence, entries = self.evidence, self.evidence.entries
        segment = evidence.segments[int(evidence.segment[entry])]
        offset = int(entries.offset[entry])
        number = int(self.where[entry])
        if number < 0:
            if segment not in self.names[len(self.store.logs) :]:
                self.names.append(segment)
            number = self.names.index(segment, len(self.store.logs))
        self.extras.append(_Extra(message_of(entries, entry), number, self._place(entry), entry))
        self.reported.add(keys.identity_of(entries.key(entry)))
        kind, blob = Kind(int(entries.kind[entry])).name, keys.text_of(entries.key(entry))
        reason = f"{kind} of blob {blob} written again from {evidence.name(entry)}"
        place = {"start": offset, "stop": offset + int(entries.size[entry])}
        self.restored[len(self.report.entries)] = Loss(
            entries.key(entry),
            int(entries.kind[entry]),
            int(entries.life_version[entry]),
            self._path(segment),
            reason=f"{kind} of blob {blob}: only {evidence.name(entry)} has it",
            **place,
        )
        self.report.add(Action.CHANGED, f"{reason}, which has its time in seconds", self._path(segment), **place)

    def _report_damages(self) -> None:
        """What is dropped, and the blob ids that can be read in it and are not reported yet."""
        for number, log in enumerate(self.read):
            if log.lacks_header:
                self._add(Action.CHANGED, "damaged segment header rewritten", number, 0, SEGMENT_HEADER.size)
            elif log.capacity not in (None, self.capacity):
                reason = f"capacity of {log.capacity:,} bytes changed to {self.capacity:,}, as the other segments have"
                self._add(Action.CHANGED, reason, number, 0, SEGMENT_HEADER.size)
        for number, source in self._sources():
            for damage in sorted(
                (damage for log, damage in self.damages if log == number), key=lambda damage: damage.start
            ):
                is_aside = (
                    number,
                    damage,
                ) in self.aside  # sound messages, of another store or known from their original
                data = source.read(damage.start, 0 if is_aside else min(damage.stop - damage.start, MOST_SEARCHED))
                blob_ids = [damage.key] if damage.key is not None else ids_in(data, self.partition)
                is_end = self._is_unconfirmed_end(number, damage) and not (
                    blob_ids and self.read[number].ends_in_damage
                )
                place = {"start": damage.start, "stop": damage.stop}
                reason = (
                    f"{damage.reason} of blob {keys.text_of(blob_ids[0])}" if is_end and blob_ids else damage.reason
                )
                self.report.add(Action.DROPPED, reason, self.store.logs[number].path, is_expected=is_end, **place)
                for key in blob_ids if not is_end else ():
                    if keys.identity_of(key) not in self.reported:
                        self.reported.add(keys.identity_of(key))
                        reason = f"blob {keys.text_of(key)}: a damaged message names it; what it said is not known"
                        path = self.store.logs[number].path
                        self._lose(Loss(key, None, None, path, damage.start, damage.stop, reason))
        self._report_lost_segments()
        self._report_lost_positions()

    def _is_unconfirmed_end(self, number: int, damage: Damage) -> bool:
        """Whether damaged bytes are what a crash leaves: at the end of the log or of a segment's index, and no index file covers them."""
        tail = self.read[number].tail
        if tail is None or damage.start != tail[0]:
            return False
        pairs = zip(self.logs_of_files.tolist(), self.evidence.files, strict=True)
        ends = [index.end for log, index in pairs if log == number and index.crc_ok]
        is_last = self.names[number] == max(self.names, key=lambda name: name.order)
        return max(ends, default=0) <= damage.start and (is_last or damage.start in ends)

    def _report_lost_positions(self) -> None:
        """Segments of which nothing is there."""
        settled = self.store.lost_positions(self.names[: len(self.store.logs)])
        for position in sorted(set(settled) & set(self.store.lost_positions())):
            self.gaps.append(position)
            self.report.add(Action.LOST, lost_words(position), self._path(Segment(position, 0)))

    def _report_lost_puts(self, kept: KeptMessages, entry_rows: NDArray[np.int64]) -> None:
        """Report blobs that have only updates left, unless a compaction explains it, and those whose expiry only a lost index knew."""
        trusted, catalog = self.trusted_entries, kept.ranked
        folded = fold(catalog, use=ALWAYS, remembered=[(entry_rows[trusted], self.evidence.entries.take(trusted))])
        if not self.store.is_compacted:
            for row in np.sort(folded.first[(folded.put < 0) & ~may_lack_put(folded)]).tolist():
                key = catalog.key(row)
                if keys.identity_of(key) not in self.reported:
                    kind = Kind(int(catalog.kind[row])).name
                    self._lose(self._loss_at(kept, row, PUT, f"its PUT is lost, its {kind} is left"))
                    self.reported.add(keys.identity_of(key))
        for row in forgotten_expiries(folded, entry_rows[trusted]).tolist():
            if keys.identity_of(catalog.key(row)) not in self.reported:
                reason = "UNDELETE without a PUT; only the index knew when the blob expires"
                self.forgotten.append(self._loss_at(kept, row, None, reason))
                self._report_loss(self.forgotten[-1])

    def _loss_at(self, kept: KeptMessages, row: int, kind: int | None, reason: str) -> Loss:
        """The loss of something that a kept message tells of, at its place in the source."""
        merged, key = kept.merged, kept.ranked.key(row)
        start, life = int(merged.offset[row]), int(merged.life_version[row])
        path = self._source_path(int(merged.segment[row]))
        return Loss(key, kind, life, path, start, start + int(merged.size[row]), f"blob {keys.text_of(key)}: {reason}")

    def _report_lost_segments(self) -> None:
        evidence = self.evidence
        lost = np.unique(evidence.segment[(self.rows < 0) & (self.where < 0)]).tolist()
        lost_names = {evidence.segments[number] for number in lost}
        for segment, files in self.store.lost_segments().items():
            if segment in self.names[: len(self.store.logs)]:
                continue
            if segment in lost_names or any(file.path in evidence.unread for file in files):
                self.report.add(Action.LOST, segment_words(files), self._path(segment))

    # The result

    @property
    def trusted_entries(self) -> NDArray[np.int64]:
        """The index entries that decide where the log has no message."""
        return np.flatnonzero(self.trusted)

    def _written_segments(self) -> list[int]:
        """The numbers of the segments to write, in order: a foreign one only if restored messages go there."""
        left_out = self.foreign - {extra.segment for extra in self.extras}
        numbers = [number for number in range(len(self.names)) if number not in left_out] or [0]
        return sorted(numbers, key=lambda number: self.names[number].order)

    def kept(self) -> KeptMessages:
        """All messages of the result in order, without those that Ambry refuses."""
        order = self._written_segments()
        rank = np.zeros(len(self.names), np.int64)
        rank[order] = np.arange(len(order))
        merged, number, entry_rows = self._merge(rank)
        ranked = replace(merged, segment=rank[merged.segment].astype(np.int32))
        trusted = self.trusted_entries
        entries = self.evidence.entries.take(trusted)
        wrong = fold(ranked, use=ORPHANS, drop=True, remembered=[(entry_rows[trusted], entries)]).wrong
        refused = is_refused(ranked, wrong)
        for row in np.flatnonzero(refused).tolist():
            reason = f"{VIOLATIONS[int(wrong[row])]} (blob {keys.text_of(merged.key(row))})"
            self._report_message(Action.DROPPED, reason, merged, row)
        rows = np.flatnonzero(~refused)
        segments = [self.names[index] for index in order]
        entry_rows = _renumber(entry_rows, rows, len(ranked))
        kept = KeptMessages(segments, merged.take(rows), ranked.take(rows), number[rows], entry_rows)
        self._report_lost_puts(kept, entry_rows)
        return kept

    def pieces(self, kept: KeptMessages) -> Iterator[Piece]:
        """Where the kept messages are in the source, in their order there. Those that are written again from an index entry are nowhere."""
        merged = kept.merged
        corrected = np.array([len(extra.raw) if extra.is_there else 0 for extra in self.extras], np.int64)
        is_stored = (kept.number < 0) | (np.append(corrected, 0)[kept.number] > 0)
        rows = np.flatnonzero(is_stored & (merged.segment < len(self.store.logs)))
        rows = rows[np.lexsort((merged.offset[rows], merged.segment[rows]))]
        segment, start = merged.segment[rows], merged.offset[rows]
        stop = start + merged.size[rows]
        begins = np.ones(rows.size, np.bool_)
        begins[1:] = (segment[1:] != segment[:-1]) | (start[1:] != stop[:-1])
        ends = np.append(begins[1:], True) if rows.size else begins
        for number, first, last in zip(
            segment[begins].tolist(), start[begins].tolist(), stop[ends].tolist(), strict=True
        ):
            yield Piece(self.store.logs[number].path, first, last)

    def patches(self) -> dict[str, tuple[Patch, ...]]:
        """The messages of the source whose blob ids are corrected, by path."""
        by_path: dict[str, list[Patch]] = {}
        for extra in self.extras:
            if extra.is_there:
                by_path.setdefault(self.store.logs[extra.segment].path, []).append((extra.offset, extra.raw))
        return {path: tuple(sorted(patches)) for path, patches in by_path.items()}

    def plan(self) -> StorePlan:
        """All messages that are written, in their order and at their new places."""
        return self.plan_of(self.kept())

    def plan_of(self, kept: KeptMessages) -> StorePlan:
        """The plan to write these messages."""
        segments, final, number, entry_rows = kept.segments, kept.ranked, kept.number, kept.entry_rows
        trusted = self.trusted_entries
        entries = self.evidence.entries.take(trusted)
        moved = _settle_places(final, segments)
        is_stored = entry_rows[trusted] >= 0
        if is_stored.any():
            is_moved = moved[final.segment[np.maximum(entry_rows[trusted], 0)]]
            entries = replace(entries, original_offset=np.where(is_stored & ~is_moved, entries.original_offset, NONE))
        folded = fold(final, use=ORPHANS, remembered=[(entry_rows[trusted], entries)])
        self.report.count("messages", len(final))
        numbers = {segment: place for place, segment in enumerate(segments)}
        files = self.evidence.files
        indexes = [(numbers[index.segment], index) for index in files if index.crc_ok and index.segment in numbers]
        return StorePlan(
            self.store,
            segments,
            [self.capacity if segment.name else None for segment in segments],
            kept.merged,
            final.segment,
            {row: self.extras[extra].raw for row, extra in enumerate(number.tolist()) if extra >= 0},
            folded.entries,
            final.segment,
            Style.of(self.store, indexes, self._starts(entry_rows, final.segment, final.offset), self.options),
            **self._identity(),
        )

    def _report_message(self, action: Action, reason: str, merged: Catalog, row: int) -> None:
        """Report something about a message, at its place in the source."""
        start, path = int(merged.offset[row]), self._source_path(int(merged.segment[row]))
        self.report.add(action, reason, path, start=start, stop=start + int(merged.size[row]))

    def _source_path(self, number: int) -> str:
        """The path of a log segment, by number, in the source; one that is not there would have it."""
        return self.store.logs[number].path if number < len(self.store.logs) else self._path(self.names[number])

    def _merge(self, rank: NDArray[np.int64]) -> tuple[Catalog, NDArray[np.int64], NDArray[np.int64]]:
        """Messages of the log and extras in the order of their segments' ranks; the number of each row's extra (-1: none), and the row
        of each entry.
        """
        count = len(self.catalog)
        merged = self.catalog.join(
            catalog_of_messages([(extra.raw, extra.segment, extra.offset) for extra in self.extras])
        )
        number = np.concatenate([np.full(count, NONE, np.int64), np.arange(len(self.extras))])
        before, entry_rows = merged.offset.copy(), self.rows.copy()
        for index, extra in enumerate(self.extras):
            if extra.entry >= 0:
                before[count + index] = self.evidence.entries.offset[extra.entry]
                entry_rows[extra.entry] = count + index
        alive = np.concatenate([~self.dead, np.ones(len(self.extras), np.bool_)])
        rows = np.flatnonzero(alive)
        rows = rows[np.lexsort((before[rows], merged.offset[rows], rank[merged.segment[rows]]))]
        return merged.take(rows), number[rows], _renumber(entry_rows, rows, len(merged))

    def _starts(
        self, entry_rows: NDArray[np.int64], segment: NDArray[np.int32], offset: NDArray[np.int64]
    ) -> frozenset[tuple[int, int]]:
        """Where the store's own index files begin, at the new places of their first messages."""
        starts = set()
        for number, index in enumerate(self.evidence.files):
            rows = entry_rows[self.evidence.file == number]
            rows = rows[rows >= 0]
            if index.crc_ok and rows.size:
                row = int(rows.min())
                starts.add((int(segment[row]), int(offset[row])))
        return frozenset(starts)

    def _identity(self) -> dict[str, Any]:
        """The descriptor of the store, or a new one; and the files that show that compactions have run."""
        sound = [file for file in self.store.others if file.format == "ambry.descriptor" and _is_sound(file)]
        shown = [file for file in other_files(self.store) if file.format in (COMPACTION_FORMAT, POLICY_FORMAT)]
        if sound:
            return {"kept": [sound[0], *shown]}
        path = f"{self.store.folder}/{DESCRIPTOR_NAME}"
        self.report.add(Action.ADDED, "a new incarnation id", path, is_expected=True)
        return {"files": {DESCRIPTOR_NAME: descriptor(str(uuid.uuid4()))}, "kept": shown}


def _renumber(rows: NDArray[np.int64], kept: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """The new numbers of rows after only `kept` are left, in that order; -1 for the others."""
    numbers = np.full(count + 1, NONE, np.int64)
    numbers[kept] = np.arange(kept.size)
    return np.where(rows >= 0, numbers[rows], NONE)


def _settle_places(final: Catalog, segments: list[Segment]) -> NDArray[np.bool_]:
    """Place the messages of each segment without gaps; which segments have moved messages."""
    moved = np.zeros(len(segments), np.bool_)
    for number, segment in enumerate(segments):
        inside = final.rows_in(number)
        sizes = final.size[inside]
        places = np.cumsum(sizes) - sizes + (SEGMENT_HEADER.size if segment.name else 0)
        moved[number] = (places != final.offset[inside]).any()
        final.offset[inside] = places
    return moved


def _put_identity(raw: bytes) -> list[tuple[int, int, int]]:
    catalog = catalog_of_messages([(raw, 0, 0)])
    return catalog.identity.tuples if int(catalog.kind[0]) == PUT else []


def _is_sound(file: File) -> bool:
    if file.problem is not None or file.place.state is not None:
        return False
    with Source(file.path) as source:
        return len(DESCRIPTOR.scan(np.frombuffer(source.read(0, source.size), np.uint8), 0)) > 0
