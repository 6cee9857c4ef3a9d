"""Damage: files cut anywhere, changed anywhere, and made of anything."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rawlog.model.errors import DataError, RawlogError
from rawlog.reading.inspect import inspect_file
from rawlog.testing.formats import (
    Base,
    check_error,
    frames_of,
    rows_of,
    same,
    shared,
    survives,
)

#: What reading a file of some hundred bytes may take at its peak, whatever lengths it declares.
MEMORY = 12 << 20
LENGTHS = (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff")  # anywhere: the low or the high half of an 8-byte length too


class Damage(Base):
    """Only RawlogError comes out, no place lies outside the file, and nothing that is whole is lost."""

    def test_a_file_cut_at_any_byte_gives_its_whole_frames(self, scratch: Path) -> None:
        for data in self.small:
            log = self.put(scratch, data)
            frames = frames_of(log.files[0], self.subject)
            whole = {table.name: rows_of(log, table)[0] for table in self.subject.tables}
            for cut in range(len(data)):
                piece = self.put(scratch, data[:cut])
                if 0 < cut < self.least(data):
                    survives(piece, self.subject, self.points_elsewhere)
                    continue
                kept = [frame for frame in frames if frame[2] <= cut]
                assert frames_of(piece.files[0], self.subject) == kept, f"cut at {cut}"
                boundary = cut in {0, self.header(data), *(stop for _, _, stop in kept)}
                for name, rows in whole.items():
                    read, notes = rows_of(piece, name)
                    same(read, rows[: len(read)])
                    if boundary or data[kept[-1][2] if kept else 0 : cut].strip(b"\0"):  # zeros may be padding
                        assert len(notes) == (not boundary), f"cut at {cut}: {notes}"
                    if (reference := self.reference(data[:cut])) and name in reference:
                        same(read, reference[name])
                findings = inspect_file(piece.files[0])
                assert not findings.errors, f"cut at {cut}: {list(findings)}"
                assert findings.frames == len(kept)

    def test_whole_frames_read_alone_are_the_same_frames(self, scratch: Path) -> None:
        for data in self.small:
            frames = frames_of(self.put(scratch, data).files[0], self.subject)
            for cut in range(self.least(data), len(data), 7):
                kept = [frame for frame in frames if frame[2] <= cut]
                end = kept[-1][2] if kept else self.header(data)
                assert frames_of(self.put(scratch, data[:end]).files[0], self.subject) == kept

    def test_a_flip_of_any_byte_is_an_error_or_sound_data(self, scratch: Path) -> None:
        for data in self.small:
            protected = set(self.protected(data))
            for position in range(len(data)):
                flipped = bytearray(data)
                flipped[position] ^= 1 << position % 8
                log = self.put(scratch, bytes(flipped))
                findings = survives(log, self.subject, self.points_elsewhere)
                if position in protected:
                    assert findings.errors, f"byte {position} changed, and verify finds nothing"
                    with pytest.raises(DataError):
                        rows_of(log, self.subject.tables[0])
                for name, expected in (self.reference(bytes(flipped)) or {}).items():
                    try:
                        read, _ = rows_of(log, name, errors="stop")
                    except RawlogError:
                        read = []
                    same(read, expected)

    def test_checksums_are_counted_on(self) -> None:
        """A format with a checksum rule says which bytes it protects."""
        if any(rule.code.endswith((".crc", ".checksum")) for rule in self.subject.all_rules):
            assert all(set(self.protected(data)) for data in self.small if data)

    def test_lengths_that_cannot_be_take_no_memory(self, scratch: Path) -> None:
        for data in self.small:
            survives(
                self.put(scratch, data), self.subject, self.points_elsewhere
            )  # what is imported and compiled once is not counted
            for length in LENGTHS:
                # The peak is that of the worst place: one block serves them all, for starting to trace is slow.
                with bounded(MEMORY, f"a length {length.hex()}"):
                    for position in range(len(data) - len(length) + 1):
                        hostile = data[:position] + length + data[position + len(length) :]
                        log = self.put(scratch, hostile)
                        for table in self.subject.tables[:1]:
                            try:
                                rows_of(log, table, errors="skip")
                            except RawlogError as error:
                                check_error(error, len(hostile))
                        inspect_file(log.files[0])

    @shared
    @given(data=st.data())
    def test_any_bytes_give_only_rawlog_errors(self, scratch: Path, data: st.DataObject) -> None:
        survives(self.put(scratch, data.draw(self.mutations())), self.subject, self.points_elsewhere)

    @shared
    @given(data=st.data())
    def test_whole_frames_of_any_bytes_read_alone_are_the_same(self, scratch: Path, data: st.DataObject) -> None:
        sample = data.draw(self.mutations())
        try:
            frames = frames_of(self.put(scratch, sample).files[0], self.subject, errors="stop")
        except RawlogError:
            return
        end = frames[-1][2] if frames else 0
        assert all(start <= stop <= len(sample) for _, start, stop in frames)
        if frames:
            again = self.put(scratch, sample[:end])
            assert frames_of(again.files[0], self.subject, errors="raise") == frames

    @shared
    @given(data=st.data())
    def test_damage_in_one_place_costs_no_frame_before_it(self, scratch: Path, data: st.DataObject) -> None:
        sample = data.draw(st.sampled_from(list(self.small)))
        frames = frames_of(self.put(scratch, sample).files[0], self.subject)
        position = data.draw(st.integers(self.least(sample), max(len(sample) - 1, self.least(sample))))
        noise = data.draw(st.binary(min_size=1, max_size=30))
        damaged = sample[:position] + noise + sample[position + len(noise) :]
        kept = [frame for frame in frames if frame[2] <= position]
        for errors in ("stop", "skip"):
            read_frames = frames_of(self.put(scratch, damaged).files[0], self.subject, errors=errors)
            assert read_frames[: len(kept)] == kept


#: Kept for ever: what was allocated from a pool may be freed later (a caught error holds its frames), and crashes without its pool.
_POOLS: list[pa.MemoryPool] = []


@contextmanager
def bounded(limit: int, what: str) -> Iterator[None]:
    """Python's, NumPy's and Arrow's memory grows by no more than `limit` inside the block."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    _POOLS.append(pool)
    pa.set_memory_pool(pool)
    started = not tracemalloc.is_tracing()
    if started:
        tracemalloc.start()
    tracemalloc.reset_peak()
    base = tracemalloc.get_traced_memory()[0]
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1] - base + (pool.max_memory() or 0)
    finally:
        pa.set_memory_pool(before)
        if started:
            tracemalloc.stop()
    assert peak <= limit, f"{what}: {peak:,} bytes of memory"


# Damage by chance, for repair to be tried on --------------------------------------------------------------------------

SIZES = (1, 7, 60, 500, 4096)


def flipped(draw: random.Random, data: bytes, at: int) -> bytes:
    """One bit is another."""
    return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]


def zeroed(draw: random.Random, data: bytes, at: int) -> bytes:
    """A range is zeros; often a page of the file system."""
    size = draw.choice(SIZES)
    start = at // 4096 * 4096 if draw.random() < 0.3 else at
    return data[:start] + bytes(len(data[start : start + size])) + data[start + size :]


def overwritten(draw: random.Random, data: bytes, at: int) -> bytes:
    """A range is of other bytes."""
    size = len(data[at : at + draw.choice(SIZES)])
    return data[:at] + draw.randbytes(size) + data[at + size :]


def inserted(draw: random.Random, data: bytes, at: int) -> bytes:
    """Bytes came in between."""
    return data[:at] + draw.randbytes(draw.choice(SIZES)) + data[at:]


def removed(draw: random.Random, data: bytes, at: int) -> bytes:
    """Bytes are missing."""
    return data[:at] + data[at + draw.choice(SIZES) :]


def copied(draw: random.Random, data: bytes, at: int) -> bytes:
    """A range is there twice."""
    start = draw.randrange(len(data))
    return data[:at] + data[start : start + draw.choice(SIZES)] + data[at:]


def truncated(draw: random.Random, data: bytes, at: int) -> bytes:
    """The end is missing."""
    return data[:at]


WOUNDS: Mapping[str, Callable[[random.Random, bytes, int], bytes]] = {
    wound.__name__: wound for wound in (flipped, zeroed, overwritten, inserted, removed, copied, truncated)
}


def wounded(draw: random.Random, data: bytes, kind: str) -> bytes:
    """Data with damage of one kind of `WOUNDS` somewhere in it."""
    return WOUNDS[kind](draw, data, draw.randrange(len(data))) if data else data
