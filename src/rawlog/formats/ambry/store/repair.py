"""Repairing a store: what is whole is kept, in a copy that opens and verifies clean.

After damage the next sound message header is searched for. Index files are evidence: an update that the log has lost is written again from
its index entry, a damaged blob id is corrected, and a lost blob is reported by its id. Index, bloom and other derived files are rebuilt.
"""

from __future__ import annotations

import bisect
import itertools
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from rawlog.core.format import File, Origin
from rawlog.formats.ambry import LOG, keys
from rawlog.formats.ambry.index import IndexFile
from rawlog.formats.ambry.kernels.messages import find_message
from rawlog.formats.ambry.kernels.records import IN_PAYLOAD
from rawlog.formats.ambry.layouts import NONE, SEGMENT_HEADER, Kind
from rawlog.formats.ambry.paths import Segment, capacity, segment_of
from rawlog.formats.ambry.reader import Messages, scan
from rawlog.formats.ambry.small import DESCRIPTOR
from rawlog.formats.ambry.store.checks import VIOLATIONS
from rawlog.formats.ambry.store.evidence import (
    Evidence,
    agrees,
    catalog_of,
    gather,
    keys_differ,
    match,
    message_of,
    named_in,
    partitions,
    rekeyed,
    with_partition,
)
from rawlog.formats.ambry.store.rebuild import (
    Report,
    copy_file,
    copy_messages,
    log_name,
    number_option,
    one_store,
    probability_option,
    tail_words,
    write_like,
)
from rawlog.formats.ambry.store.state import (
    DELETE,
    ORPHANS,
    PUT,
    UNDELETE,
    Catalog,
    CatalogBuilder,
    fold,
    is_refused,
    updates_before_put,
)
from rawlog.formats.ambry.store.store import Store
from rawlog.formats.ambry.store.store_writer import CAPACITY, descriptor
from rawlog.formats.ambry.writer import segment_header
from rawlog.io.output import new_directory
from rawlog.io.storage import Source
from rawlog.io.walk import walk

NEW_IDENTITY = "StoreDescriptor: a new incarnation id"
DESCRIPTOR_NAME = "StoreDescriptor"
MOST_TRIES = 1000
"""So many beginnings of messages inside a damaged one are followed."""
MOST_SEARCHED = 64 << 20
"""So many damaged bytes at a place are searched for blob ids."""


def repair_store(files: Sequence[File], target: str | None, options: Mapping[str, str] | None = None) -> Report:
    """Write a repaired copy of a store to `target`.

    Options: `max_entries`, `probability` as for a rebuild, `capacity` of segments whose headers are all damaged. With `dry_run` (or
    without a target) nothing is written, and the report says what would be.
    """
    options = options or {}
    store = one_store(files)
    probability_option(options)
    most = _capacity(store, options)
    dry = target is None or options.get("dry_run", "").lower() in ("true", "1", "yes")
    report = Report()
    plan = _Plan(store, _read_all(store), gather(store), report)
    plan.make()
    if dry:
        report.files = _finish(plan, most, None, options)
        return report
    assert target is not None
    with new_directory(target) as work:
        report.files = _finish(plan, most, work, options)
    return report


def _capacity(store: Store, options: Mapping[str, str]) -> int:
    """The capacity that most segment headers name."""
    found = []
    for file in store.logs:
        with Source(file.path) as source:
            found.append(capacity(source.read(0, 64)))
    known = [one for one in found if one is not None]
    largest = max((file.size for file in store.logs), default=0)
    default = max(set(known), key=known.count) if known else max(CAPACITY, largest)
    return number_option(options, "capacity", default) or default


def _is_numbered(file: File) -> bool:
    """Whether a log segment's name says that it has a header."""
    segment = segment_of(file.path)
    return segment is not None and segment.name != ""


# ---------------------------------------------------------------- what is in the log


@dataclass(frozen=True, slots=True)
class _Damage:
    """Bytes of a log segment that are no sound message; `key` is that of the message, where it can be read."""

    number: int
    start: int
    stop: int
    why: str
    key: bytes | None = None

    def line(self, file: File) -> str:
        what = self.why if self.key is None else f"message of {self.stop - self.start:,} bytes: {self.why}"
        whose = "" if self.key is None else f" (blob {keys.text_of(self.key)})"
        return f"{log_name(file)}: byte {self.start:,}: {what}{whose}"


@dataclass(slots=True)
class _Look:
    """The sound messages of a store's log, and what else is there."""

    catalog: Catalog
    damages: list[_Damage]
    headers: list[int]
    """The numbers of segments whose header is damaged."""


def _read_all(store: Store) -> _Look:
    """Read every segment, and judge every message by itself."""
    builder, damages, headers = CatalogBuilder(), list[_Damage](), list[int]()
    for number, file in enumerate(store.logs):
        _read(file, number, builder, damages, headers)
    catalog = builder.done()
    order = np.lexsort((catalog.offset, catalog.segment))
    return _Look(catalog.take(order), damages, headers)


def _read(file: File, number: int, builder: CatalogBuilder, damages: list[_Damage], headers: list[int]) -> None:
    """The sound messages of one segment, and what is between them."""
    reached = None
    with Source(file.path) as source:
        has_header = capacity(source.read(0, 64)) is not None
        numbered = _is_numbered(file)
        first = SEGMENT_HEADER.size if has_header else 0
        if numbered and not has_header:  # bytes of it may be missing, too
            headers.append(number)
        for frames in walk(file, LOG, origin=Origin(min(first, source.size)), errors="skip", source=source):
            is_header = numbered and not has_header and frames.base <= SEGMENT_HEADER.size
            if reached is not None and frames.base > reached and not is_header:
                damages.append(_Damage(number, reached, frames.base, f"{frames.base - reached:,} damaged bytes"))
            messages = Messages(frames)
            good = messages.sound & (messages["mismatch"] == 0)
            builder.add(messages, number, good)
            for index in np.flatnonzero(~good).tolist():
                wrong = int(messages["mismatch"][index])
                why = "wrong payload size" if wrong & IN_PAYLOAD else "offsets that disagree"
                start, stop = int(frames.starts[index]), int(frames.stops[index])
                stop = _add_hidden(messages, index, number, builder) or stop
                damages.append(
                    _Damage(
                        number,
                        frames.base + start,
                        frames.base + stop,
                        why if wrong else "damaged records",
                        messages.key(index),
                    )
                )
            reached = frames.reached_in_file
            if (
                frames.last
                and reached < source.size
                and not (reached == 0 and numbered and source.size <= SEGMENT_HEADER.size)
            ):
                left = f"{source.size - reached:,} {tail_words(frames.status)}"
                damages.append(_Damage(number, reached, source.size, left))


def _add_hidden(messages: Messages, index: int, number: int, builder: CatalogBuilder) -> int | None:
    """Take the sound messages that a damaged one hides because bytes of it are missing; where the first begins, None without any.

    They must reach to the very end of the damaged one: content may be a copy of a log.
    """
    frames, data = messages.frames, messages.data
    start, stop = int(frames.starts[index]), int(frames.stops[index])
    at = start
    for _ in range(MOST_TRIES):
        at = int(find_message(data, at + 1, stop))
        if at < 0:
            return None
        hidden = scan(data[at:stop], 0)
        if hidden.reached == stop - at:
            found = Messages(replace(hidden, base=frames.base + at))
            good = found.sound & (found["mismatch"] == 0)
            if good.all():
                builder.add(found, number, good)
                return at
    return None


# ---------------------------------------------------------------- what is to be written


@dataclass(slots=True)
class _Extra:
    """A message that the log does not have so: corrected or written again, of which index entry (-1: none)."""

    raw: bytes
    segment: int
    offset: int
    entry: int


@dataclass
class _Plan:
    """What becomes of a store: which segments are written under which names, and the messages in them."""

    store: Store
    look: _Look
    evidence: Evidence
    report: Report
    extras: list[_Extra] = field(default_factory=list)
    #: Names of the segments that are written; the first ones are those that were read, in their order.
    names: list[Segment] = field(default_factory=list)

    def make(self) -> None:
        """Decide all, and report it."""
        self.names = list(self.store.segments())
        self.catalog = self.look.catalog
        self.dead = np.zeros(len(self.catalog), np.bool_)
        self.rows = match(self.catalog, self.evidence.entries)
        self.damages = list(self.look.damages)
        self.reported = set[tuple[int, int, int]]()
        self._settle_partition()
        self._name_segments()
        self._find_known()
        self._correct_ids()
        self._correct_partitions()
        self._check_blooms()
        self._restore_updates()
        self._report_damages()
        self._lay_out()

    # ------------------------------------------------------------ names

    def _settle_partition(self) -> None:
        """The partition that most messages are of, or else the directory's."""
        named = partitions(self.catalog.key_data, self.catalog.key_start)
        entries = self.evidence.entries
        every = named if named.size else partitions(entries.data, entries.starts)
        known, counts = np.unique(every, return_counts=True)
        self.named = named
        self.partition = int(known[np.argmax(counts)]) if known.size else self.store.partition or 0
        foreign = partitions(entries.data, entries.starts) != self.partition
        #: Entries that say something of this store; those of another partition are of a file that does not belong here.
        self.trusted = self.evidence.is_sound & ~foreign

    def _name_segments(self) -> None:
        """Give log segments the names that their index files, or the times of their messages, say they had."""
        own, evidence = self.store.segments(), self.evidence
        if not all(segment.name for segment in own):
            self._find_logs()
            return
        good = (self.rows >= 0) & self.trusted
        score = np.zeros((len(own), len(evidence.segments)), np.int64)
        np.add.at(score, (self.catalog.segment[self.rows[good]], evidence.segment[good]), 1)
        names = list(own)
        damaged = {one.number for one in self.damages} | set(self.look.headers)
        total = np.bincount(evidence.segment[self.trusted], minlength=len(evidence.segments))
        for number, segment in enumerate(own):
            if not len(evidence.segments):
                break
            if score[number].max() * 2 < total[int(np.argmax(score[number]))] and number not in damaged:
                continue  # most of these index files are not of this segment, which is sound
            best = evidence.segments[int(np.argmax(score[number]))]
            mine = score[number][evidence.segments.index(segment)] if segment in evidence.segments else 0
            if score[number].max() > mine and score[:, evidence.segments.index(best)].argmax() == number:
                names[number] = best
        names = _distinct(names, own)
        if names != own:
            now, then = self._disorder(own), self._disorder(names)
            lost = any(name not in own for name in names)
            if then < now or (lost and then <= now):
                self._rename(names, "its index files say so")
        self._find_logs()
        by_time, now = self._by_time(), self._disorder(self.names)
        if by_time != self.names and now[0] and self._disorder(by_time) < now:
            self._rename(by_time, "its messages come there by their times")

    def _find_logs(self) -> None:
        """The log segment, by number, that the entries of each index file are of; -1 for one that is lost.

        It is the one that has the most of their messages. A file without any goes by its name; if that segment is sound, the file is of a
        damaged one that has another name.
        """
        evidence, sizes = self.evidence, [file.size for file in self.store.logs]
        named = {name: number for number, name in enumerate(self.names)}
        good = np.flatnonzero((self.rows >= 0) & (self.trusted | evidence.is_weak))
        score = np.zeros((len(evidence.files), len(sizes)), np.int64)
        np.add.at(score, (evidence.file[good], self.catalog.segment[self.rows[good]]), 1)
        damaged = {one.number for one in self.damages} | set(self.look.headers)
        found = np.full(len(evidence.files), NONE, np.int64)
        for number, index in enumerate(evidence.files):
            mine = score[number]
            own = named.get(index.segment, NONE)
            found[number] = own if not mine.any() or (own >= 0 and mine[own] == mine.max()) else int(np.argmax(mine))
            if not mine.any() and own >= 0 and own not in damaged and index.end <= sizes[own]:
                found[number] = max(damaged, key=lambda log: self._overlap(log, index), default=own)
        self.where = found[evidence.file] if len(evidence.files) else np.empty(0, np.int64)
        self.logs_of_files = found

    def _overlap(self, number: int, index: IndexFile) -> int:
        """How many damaged bytes of a segment are where an index file says that its messages are."""
        return sum(
            max(0, min(one.stop, index.end) - max(one.start, index.start))
            for one in self.damages
            if one.number == number
        )

    def _rename(self, names: list[Segment], why: str) -> None:
        for old, new in zip(self.names, names, strict=True):
            if old != new:
                self.report.reconstructed.append(f"{old.log_name()}: written as {new.log_name()}: {why}")
        self.names = names

    def _by_time(self) -> list[Segment]:
        """The same names, given in the order of the segments' times."""
        times = [self._time(number) for number in range(len(self.names))]
        order = sorted(range(len(self.names)), key=lambda number: (times[number], self.names[number].order))
        result = list(self.names)
        for number, name in zip(order, sorted(self.names, key=lambda one: one.order), strict=True):
            result[number] = name
        return result

    def _time(self, number: int) -> float:
        times = self.catalog.time[self.catalog.rows_in(number)]
        times = times[times != NONE]
        return float(np.median(times)) if times.size else float("inf")

    def _disorder(self, names: Sequence[Segment]) -> tuple[int, int]:
        """How many messages cannot follow those before them, and how many segments are before older ones, if they have these names."""
        order = sorted(range(len(names)), key=lambda number: names[number].order)
        rank = np.empty(len(names), np.int64)
        rank[order] = np.arange(len(names))
        where = rank[self.catalog.segment]
        moved = self.catalog.take(np.lexsort((self.catalog.offset, where)))
        wrong = is_refused(moved, fold(moved, drop=True).wrong).sum() + updates_before_put(moved).sum()
        times = [one for one in (self._time(number) for number in order) if one != float("inf")]
        return int(wrong), sum(before > after for before, after in itertools.pairwise(times))

    def _find_known(self) -> None:
        """The entries whose messages are in the segment that they name, in the order of segments and offsets."""
        evidence, rows = self.evidence, np.maximum(self.rows, 0)
        inside = (self.rows >= 0) & (self.catalog.segment[rows] == self.where) if len(self.catalog) else self.rows >= 0
        good = np.flatnonzero(inside)
        self.known = good[np.lexsort((evidence.entries.offset[good], self.where[good]))]
        self.places = list(
            zip(self.where[self.known].tolist(), evidence.entries.offset[self.known].tolist(), strict=True)
        )

    # ------------------------------------------------------------ blob ids

    def _is_lost(self) -> NDArray[np.bool_]:
        """Which trusted entries have no message."""
        result: NDArray[np.bool_] = (self.rows < 0) & self.trusted
        return result

    def _neighbours(self, entry: int) -> list[tuple[int, int]]:
        """The messages of the known entries before and after an entry in its segment: where the message is, and where its entry says."""
        here = (int(self.where[entry]), int(self.evidence.entries.offset[entry]))
        at = bisect.bisect_left(self.places, here)
        return [
            (int(self.catalog.offset[self.rows[self.known[place]]]), self.places[place][1])
            for place in (at - 1, at)
            if 0 <= place < len(self.places) and self.places[place][0] == here[0]
        ]

    def _shifts(self, entry: int) -> list[int]:
        """By how many bytes the messages around an entry's are away from where their entries say; 0 first."""
        return list(dict.fromkeys([0, *(found - expected for found, expected in self._neighbours(entry))]))

    def _place(self, entry: int) -> int:
        """Where in its log segment the lost message of an entry was: after the known one before it, before the next one."""
        offset = int(self.evidence.entries.offset[entry])
        place = offset
        for found, expected in self._neighbours(entry):
            place = offset + found - expected if expected < offset else min(place, found - 1)
        return place

    def _sources(self) -> Iterator[tuple[int, Source]]:
        for number, file in enumerate(self.store.logs):
            with Source(file.path) as source:
                yield number, source

    def _correct_ids(self) -> None:
        """Messages whose records are sound but whose key is not that of their index entry get the entry's.

        An index file repeats the key of a blob's first message in it; a later message may have another key of the same blob.
        """
        evidence, entries = self.evidence, self.evidence.entries
        wanted = np.flatnonzero(self._is_lost() | (evidence.is_weak & (self.rows < 0)))
        other = keys_differ(self.catalog, self.rows, entries) & self.trusted
        foreign = np.zeros(len(entries), np.bool_)
        if len(self.catalog):
            foreign = self.named[np.maximum(self.rows, 0)] != self.partition
        other &= evidence.is_first | foreign
        for number, source in self._sources():
            for entry in np.flatnonzero(other & (self.where == number)).tolist():
                row = int(self.rows[entry])
                if int(self.catalog.segment[row]) == number:
                    raw = rekeyed(source, int(self.catalog.offset[row]), entries.key(entry))
                    if raw is not None:
                        self._replace(number, row, int(self.catalog.offset[row]), raw, entry, evidence.name(entry))
            for entry in wanted[self.where[wanted] == number].tolist():
                self._correct_id(number, source, entry)

    def _correct_id(self, number: int, source: Source, entry: int) -> None:
        evidence = self.evidence
        key, offset = evidence.entries.key(entry), int(evidence.entries.offset[entry])
        for shift in self._shifts(entry):
            raw = rekeyed(source, offset + shift, key)
            if raw is None or not agrees(catalog_of([(raw, 0, 0)]), 0, evidence, entry):
                continue
            row = int(self.catalog.rows_at(number, np.array([offset + shift]))[0])
            if row >= 0 and (self.dead[row] or (self.rows == row).any()):
                continue
            bloom = evidence.bloom(entry)
            old = None if row < 0 else self.catalog.key(row)
            known = bloom is not None and bloom.has_key(key)
            denied = bloom is not None and old is not None and not bloom.has_key(old)
            if (known or bloom is None) if evidence.is_sound[entry] else (known and (denied or old is None)):
                self._replace(number, row, offset + shift, raw, entry, evidence.name(entry))
            elif not (bloom is not None and old is not None and bloom.has_key(old) and not known):
                text = keys.text_of(key) if old is None else f"{keys.text_of(old)} or {keys.text_of(key)}"
                name = self.names[number].log_name()
                self.report.lost.append(
                    f"blob {text}: {name}, byte {offset + shift:,}, and {evidence.name(entry)} disagree on the id"
                )
            return

    def _replace(self, number: int, row: int, position: int, raw: bytes, entry: int, why: str) -> None:
        """Write a message with another key in the place of what is there."""
        made = catalog_of([(raw, 0, 0)])
        was = "it cannot be read"
        if row >= 0:
            self.dead[row] = True
            was = f"it was {keys.text_of(self.catalog.key(row))}"
        self.report.reconstructed.append(
            f"{log_name(self.store.logs[number])}: byte {position:,}: blob id corrected to {keys.text_of(made.key(0))} by {why}: {was}"
        )
        self.extras.append(_Extra(raw, number, position, entry))
        self._uncover(number, position, position + len(raw))

    def _uncover(self, number: int, start: int, stop: int) -> None:
        """Bytes that are a message after all are not damaged."""
        left = list[_Damage]()
        for one in self.damages:
            if one.number != number or one.stop <= start or one.start >= stop:
                left.append(one)
                continue
            for from_, to in ((one.start, start), (stop, one.stop)):
                if from_ < to:
                    left.append(_Damage(number, from_, to, f"{to - from_:,} damaged bytes"))
        self.damages = left

    def _correct_partitions(self) -> None:
        """Keys of another partition than all the rest: right again where another message or entry has them so, or one byte differs."""
        odd = np.flatnonzero((self.named != self.partition) & ~self.dead)
        if not odd.size or odd.size * 2 >= len(self.catalog):
            return
        entries = self.evidence.entries
        seen = {entries.key(entry) for entry in np.flatnonzero(self.trusted).tolist()}
        right = np.flatnonzero(self.named == self.partition)
        whole = {row: self.catalog.key(row) for row in right.tolist()}
        seen |= set(whole.values())
        same = dict(zip(self.catalog.identity.take(right).tuples, whole.values(), strict=True))
        for number, source in self._sources():
            for row in odd[self.catalog.segment[odd] == number].tolist():
                old = self.catalog.key(row)
                key = with_partition(old, self.partition)
                if key not in seen:
                    key = same.get(keys.identity_of(old), key)
                if key not in seen and sum(one != two for one, two in zip(old, key, strict=True)) > 1:
                    continue
                raw = rekeyed(source, int(self.catalog.offset[row]), key)
                if raw is not None:
                    entry = next(iter(np.flatnonzero(self.rows == row).tolist()), NONE)
                    why = "the partition of the other messages"
                    self._replace(number, row, int(self.catalog.offset[row]), raw, entry, why)

    def _check_blooms(self) -> None:
        """Report ids that the bloom of their place denies where no index file can be read: one of their bytes may be damaged."""
        evidence = self.evidence
        read = {(index.segment, index.start) for index in evidence.files}
        damaged = {one.number for one in self.damages}
        for number, segment in enumerate(self.names):
            starts = sorted({start for one, start in (*read, *evidence.blooms) if one == segment})
            for at, start in enumerate(starts):
                bloom = evidence.blooms.get((segment, start))
                if (
                    bloom is None
                    or (segment, start) in read
                    or number in damaged
                    or self.names != self.store.segments()
                ):
                    continue
                stop = starts[at + 1] if at + 1 < len(starts) else self.store.logs[number].size
                inside = self.catalog.rows_in(number)
                offset = self.catalog.offset[inside]
                rows = np.flatnonzero((offset >= start) & (offset < stop)) + inside.start
                for row in rows[~self.dead[rows]].tolist():
                    key = self.catalog.key(row)
                    if not bloom.has_key(key):
                        self.report.lost.append(
                            f"blob {keys.text_of(key)}: {segment.log_name()}, byte {int(self.catalog.offset[row]):,}: "
                            "its bloom does not know this id, which may be damaged"
                        )

    # ------------------------------------------------------------ what was lost

    def _restore_updates(self) -> None:
        """Write updates again that only the index knows, and report blobs whose content is lost."""
        evidence, entries = self.evidence, self.evidence.entries
        fixed = {extra.entry for extra in self.extras}
        damaged = {one.number for one in self.damages} | set(self._cut_segments())
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
        has_put = set(kept.identity.tuples) | {made for extra in self.extras for made in _put_identity(extra.raw)}
        gone = {
            one for one, entry in zip(identity, lost.tolist(), strict=True) if int(entries.kind[entry]) == PUT
        } - has_put
        newest = self._newest(lost)
        seen = set[tuple[tuple[int, int, int], int, int]]()
        for one, entry in zip(identity, lost.tolist(), strict=True):
            kind = int(entries.kind[entry])
            mark = (one, kind, int(entries.life_version[entry]))
            if mark in seen:
                continue
            seen.add(mark)
            if kind == PUT or (one in gone and not (kind == DELETE and newest[one] == entry)):
                self._report_lost(entry, "")
            else:
                self._restore(entry)

    def _newest(self, lost: NDArray[np.int64]) -> dict[tuple[int, int, int], int]:
        """The last of the lost entries of each blob, NONE if a message after it is there."""
        evidence, entries = self.evidence, self.evidence.entries
        segments = [segment.order for segment in evidence.segments]
        found: dict[tuple[int, int, int], tuple[tuple[int, int], int, int]] = {}
        for one, entry in zip(entries.identities.take(lost).tuples, lost.tolist(), strict=True):
            place = (segments[int(evidence.segment[entry])], int(entries.offset[entry]), entry)
            found[one] = max(found.get(one, place), place)
        names = [name.order for name in self.names]
        for row, one in enumerate(self.catalog.identity.tuples):
            if one in found and not self.dead[row] and int(self.catalog.kind[row]) != PUT:
                place = (names[int(self.catalog.segment[row])], int(self.catalog.offset[row]), NONE)
                found[one] = max(found[one], place)
        return {one: place[2] for one, place in found.items()}

    def _cut_segments(self) -> Iterator[int]:
        """The segments that end before their index does."""
        for number, index in zip(self.logs_of_files.tolist(), self.evidence.files, strict=True):
            if number >= 0 and index.crc_ok and index.end > self.store.logs[number].size:
                yield number

    def _report_lost(self, entry: int, condition: str) -> None:
        entries = self.evidence.entries
        kind, size = Kind(int(entries.kind[entry])).name, int(entries.size[entry])
        segment = self.evidence.segments[int(self.evidence.segment[entry])]
        self.reported.add(keys.identity_of(entries.key(entry)))
        self.report.lost.append(
            f"blob {keys.text_of(entries.key(entry))}: {kind} of {size:,} bytes lost in {segment.log_name()} at byte "
            f"{int(entries.offset[entry]):,}{condition}"
        )

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
        kind = Kind(int(entries.kind[entry])).name
        self.report.reconstructed.append(
            f"{segment.log_name()}: byte {offset:,}: {kind} of blob {keys.text_of(entries.key(entry))} written again from "
            f"{evidence.name(entry)}"
        )

    def _report_damages(self) -> None:
        """What is dropped, and the blob ids that can be read in it and are not reported yet."""
        lines = [
            (number, 0, f"{log_name(self.store.logs[number])}: byte 0: damaged segment header rewritten")
            for number in self.look.headers
        ]
        for number, source in self._sources():
            for one in self.damages:
                if one.number != number:
                    continue
                lines.append((number, one.start, one.line(self.store.logs[number])))
                data = source.read(one.start, min(one.stop - one.start, MOST_SEARCHED))
                found = [one.key] if one.key is not None else named_in(data, self.partition)
                for key in found:
                    if keys.identity_of(key) not in self.reported:
                        self.reported.add(keys.identity_of(key))
                        self.report.lost.append(
                            f"blob {keys.text_of(key)}: {log_name(self.store.logs[number])}, byte {one.start:,}: a damaged message "
                            "names it; what it said is not known"
                        )
        self.report.dropped += [line for _, _, line in sorted(lines)]
        wanted = {
            self.evidence.segments[one]
            for one in np.unique(self.evidence.segment[(self.rows < 0) & (self.where < 0)]).tolist()
        }
        unread = {path for path, _ in self.store.problems}
        for segment, files in self.store.lost_segments().items():
            if segment in self.names[: len(self.store.logs)]:
                continue
            if segment in wanted or any(file.path in unread for file in files):
                names = ", ".join(file.path.rpartition("/")[2] for file in files)
                self.report.dropped.append(
                    f"{segment.log_name()}: the log segment is not there; its index files are: {names}"
                )

    # ------------------------------------------------------------ the result

    def _lay_out(self) -> None:
        """All messages that are written, in their order and at their new places; those that Ambry refuses are dropped."""
        order = sorted(range(len(self.names)), key=lambda number: self.names[number].order)
        rank = np.empty(len(self.names), np.int64)
        rank[order] = np.arange(len(self.names))
        extra = catalog_of([(one.raw, one.segment, one.offset) for one in self.extras])
        merged = self.catalog.join(extra)
        number = np.concatenate([np.full(len(self.catalog), NONE, np.int64), np.arange(len(self.extras))])
        alive = np.concatenate([~self.dead, np.ones(len(extra), np.bool_)])
        rows = np.flatnonzero(alive)
        before = merged.offset.copy()
        for at, made in enumerate(self.extras):
            if made.entry >= 0:
                before[len(self.catalog) + at] = self.evidence.entries.offset[made.entry]
        rows = rows[np.lexsort((before[rows], merged.offset[rows], rank[merged.segment[rows]]))]
        found = np.full(len(merged), NONE, np.int64)
        found[rows] = np.arange(rows.size)
        entry_rows = np.where(self.rows >= 0, found[np.maximum(self.rows, 0)] if found.size else NONE, NONE)
        for at, made in enumerate(self.extras):
            if made.entry >= 0:
                entry_rows[made.entry] = found[len(self.catalog) + at]
        merged, number = merged.take(rows), number[rows]
        ranked = replace(merged, segment=rank[merged.segment].astype(np.int32))
        trusted = np.flatnonzero(self.evidence.is_sound)
        entries = self.evidence.entries.take(trusted)
        wrong = fold(ranked, use=ORPHANS, drop=True, remembered=[(entry_rows[trusted], entries)]).wrong
        refused = is_refused(ranked, wrong)
        for row in np.flatnonzero(refused).tolist():
            name = self.names[order[int(ranked.segment[row])]].log_name()
            self.report.dropped.append(
                f"{name}: byte {int(ranked.offset[row]):,}: message of {int(ranked.size[row]):,} bytes: {VIOLATIONS[int(wrong[row])]} "
                f"(blob {keys.text_of(ranked.key(row))})"
            )
        kept = np.flatnonzero(~refused)
        again = np.full(len(ranked), NONE, np.int64)
        again[kept] = np.arange(kept.size)
        entry_rows = np.where(entry_rows >= 0, again[np.maximum(entry_rows, 0)] if again.size else NONE, NONE)
        self.merged, self.extra_number = merged.take(kept), number[kept]
        self.final = ranked.take(kept)
        self.segments = [self.names[one] for one in order]
        moved = np.zeros(len(self.segments), np.bool_)
        for one, segment in enumerate(self.segments):
            inside = self.final.rows_in(one)
            sizes = self.final.size[inside]
            places = np.cumsum(sizes) - sizes + (SEGMENT_HEADER.size if segment.name else 0)
            moved[one] = (places != self.final.offset[inside]).any()
            self.final.offset[inside] = places
        there = entry_rows[trusted] >= 0
        if there.any():
            away = moved[self.final.segment[np.maximum(entry_rows[trusted], 0)]]
            entries = replace(entries, original_offset=np.where(there & ~away, entries.original_offset, NONE))
        self.folded = fold(self.final, use=ORPHANS, remembered=[(entry_rows[trusted], entries)])
        self._report_orphans(entry_rows[trusted])
        self.starts = self._starts(entry_rows)

    def _report_orphans(self, known: NDArray[np.int64]) -> None:
        """Blobs of which the log has an UNDELETE and nothing before it: without its index entry nobody knows when they expire."""
        first = self.folded.first[self.final.kind[self.folded.first] == UNDELETE]
        for row in first[~np.isin(first, known)].tolist():
            name = self.segments[int(self.final.segment[row])].log_name()
            self.report.lost.append(
                f"blob {keys.text_of(self.final.key(row))}: {name}: UNDELETE without a PUT; only the index knew when the blob expires"
            )

    def _starts(self, entry_rows: NDArray[np.int64]) -> frozenset[tuple[int, int]]:
        """Where the store's own index files begin, at the new places of their first messages."""
        found = set()
        for number, index in enumerate(self.evidence.files):
            rows = entry_rows[self.evidence.file == number]
            rows = rows[rows >= 0]
            if index.crc_ok and rows.size:
                row = int(rows.min())
                found.add((int(self.final.segment[row]), int(self.final.offset[row])))
        return frozenset(found)

    def write_segment(self, number: int, out: BinaryIO) -> None:
        """The messages of one segment, end to end."""
        rows = np.arange(len(self.merged))[self.final.rows_in(number)]
        made = self.extra_number[rows] >= 0
        cuts = np.flatnonzero(made)
        at = 0
        for cut in [*cuts.tolist(), rows.size]:
            copy_messages(self.store, self.merged, rows[at:cut], out)
            if cut < rows.size:
                out.write(self.extras[int(self.extra_number[rows[cut]])].raw)
            at = cut + 1


def _distinct(names: list[Segment], own: list[Segment]) -> list[Segment]:
    """Names of which no two are the same: a segment whose name another one gets takes one that is free now."""
    taken = {new for new, old in zip(names, own, strict=True) if new != old}
    free = [old for new, old in zip(names, own, strict=True) if new != old and old not in taken]
    moved = [new == old and new in taken for new, old in zip(names, own, strict=True)]
    if len(set(names)) < len(names) and sum(moved) != len(names) - len(set(names)):
        return own
    if sum(moved) > len(free):
        return own
    return [free.pop(0) if is_moved else new for new, is_moved in zip(names, moved, strict=True)]


def _put_identity(raw: bytes) -> list[tuple[int, int, int]]:
    made = catalog_of([(raw, 0, 0)])
    return made.identity.tuples if int(made.kind[0]) == PUT else []


def _finish(plan: _Plan, most: int, work: Path | None, options: Mapping[str, str]) -> list[str]:
    """Write the segments, the identity of the store, index and bloom files, if there is a place for them. All names, in order."""
    store, report = plan.store, plan.report
    names = [segment.log_name() for segment in plan.segments]
    for number, segment in enumerate(plan.segments):
        if work is not None:
            with (work / segment.log_name()).open("xb") as out:
                out.write(segment_header(most) if segment.name else b"")
                plan.write_segment(number, out)
    sound = [file for file in store.others if file.format == "ambry.descriptor" and _is_sound_descriptor(file)]
    if not sound:
        report.notes.append(NEW_IDENTITY)
    if work is not None:
        if sound:
            copy_file(sound[0].path, work / DESCRIPTOR_NAME)
        else:
            (work / DESCRIPTOR_NAME).write_bytes(descriptor(str(uuid.uuid4())))
    report.messages = len(plan.final)
    numbers = {segment: number for number, segment in enumerate(plan.segments)}
    known = [
        (numbers[index.segment], index) for index in plan.evidence.files if index.crc_ok and index.segment in numbers
    ]
    return sorted(
        [*names, DESCRIPTOR_NAME, *write_like(store, known, plan.folded, plan.segments, plan.starts, work, options)]
    )


def _is_sound_descriptor(file: File) -> bool:
    if file.problem is not None or file.place.state is not None:
        return False
    with Source(file.path) as source:
        return len(DESCRIPTOR.scan(np.frombuffer(source.read(0, source.size), np.uint8), 0)) > 0
