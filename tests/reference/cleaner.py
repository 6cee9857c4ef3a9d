"""Log compaction of magic 2 in plain Python, slow and obvious, by kafka-log.md §6. Imports nothing of rawlog."""

from __future__ import annotations

from dataclasses import dataclass, field

from .kafka import CREATE_TIME, LOG_APPEND_TIME, Batch, Record, decode, encode_batch, encode_record

ABORT, COMMIT = 0, 1


@dataclass
class Producer:
    epoch: int = -1
    last_offset: int = -1
    first_open: int = -1


@dataclass
class Aborted:
    producer: int
    first: int
    last: int
    seen: bool = False


@dataclass
class Log:
    """Segments by their base offsets, and what a broker knows of them."""

    segments: dict[int, bytes]
    producers: dict[int, Producer] = field(default_factory=dict)
    aborted: list[Aborted] = field(default_factory=list)
    end: int = 0


def load(segments: dict[int, bytes]) -> Log:
    """Producers and aborted transactions, from the log alone (§7.3, §8.2)."""
    log = Log(dict(segments))
    for base in sorted(segments):
        log.end = max(log.end, base)
        for batch in decode(segments[base]):
            log.end = batch.last_offset + 1
            if batch.producer_id < 0:
                continue
            known = log.producers.setdefault(batch.producer_id, Producer())
            if not batch.is_control:
                known.epoch, known.last_offset = batch.producer_epoch, batch.last_offset
                if batch.is_transactional and known.first_open < 0:
                    known.first_open = batch.base_offset or 0
            elif batch.records:
                if batch.records[0].control_type == ABORT and known.first_open >= 0:
                    log.aborted.append(Aborted(batch.producer_id, known.first_open, batch.last_offset))
                known.first_open = -1
                if batch.producer_epoch != known.epoch:
                    known.epoch, known.last_offset = batch.producer_epoch, -1
    return log


class Tracker:
    """§6.4: which batches a transaction lets go of."""

    def __init__(self, aborted: list[Aborted]) -> None:
        self.waiting = sorted(
            (Aborted(one.producer, one.first, one.last) for one in aborted), key=lambda one: one.first
        )
        self.ongoing: dict[int, Aborted] = {}
        self.committed: set[int] = set()

    def discards(self, batch: Batch) -> bool:
        while self.waiting and self.waiting[0].first <= batch.last_offset:
            one = self.waiting.pop(0)
            self.ongoing.setdefault(one.producer, one)
        if not batch.is_control:
            if not batch.is_transactional:
                return False
            if batch.producer_id in self.ongoing:
                self.ongoing[batch.producer_id].seen = True
                return True
            self.committed.add(batch.producer_id)
            return False
        if not batch.records:
            return True
        if batch.records[0].control_type == ABORT:
            ended = self.ongoing.pop(batch.producer_id, None)
            return ended is None or not ended.seen
        if batch.records[0].control_type == COMMIT:
            was_there = batch.producer_id in self.committed
            self.committed.discard(batch.producer_id)
            return not was_there
        return False


def compact(
    segments: dict[int, bytes], *, now: int, retention: int, most_keys: int, segment_bytes: int, first_dirty: int = 0
) -> tuple[dict[int, bytes], int]:
    """All rounds over all but the last segment; the new segments, and the first offset that is still dirty."""
    log = load(segments)
    producers, last_base = log.producers, max(segments)
    stable = min((one.first_open for one in producers.values() if one.first_open >= 0), default=log.end)
    stop = last_base if stable >= last_base else max(base for base in segments if base <= stable)
    while first_dirty < stop:
        keys, latest = build(log, first_dirty, stop, most_keys)
        log = Log(clean(log, producers, keys, latest, stop, now, retention, segment_bytes), producers, [], log.end)
        log.aborted = load(log.segments).aborted
        first_dirty = latest + 1
    return log.segments, first_dirty


def build(log: Log, first_dirty: int, stop: int, most_keys: int) -> tuple[dict[bytes, int], int]:
    """§6.2"""
    keys: dict[bytes, int] = {}
    latest = -1
    tracker = Tracker([one for one in log.aborted if one.last >= first_dirty])
    bases = [base for base in sorted(log.segments) if base < stop]
    for base, following in zip(bases, [*bases[1:], stop], strict=True):
        if following <= first_dirty:
            continue
        for batch in decode(log.segments[base]):
            if not tracker.discards(batch) and not batch.is_control:
                for record in batch.records:
                    if record.key is not None and record.offset >= first_dirty:
                        if len(keys) >= most_keys:
                            return keys, latest
                        keys[record.key] = latest = record.offset
            if batch.last_offset >= first_dirty:
                latest = batch.last_offset
        latest = following - 1
    return keys, latest


def clean(
    log: Log,
    producers: dict[int, Producer],
    keys: dict[bytes, int],
    latest: int,
    stop: int,
    now: int,
    retention: int,
    segment_bytes: int,
) -> dict[int, bytes]:
    """§6.3 to §6.6"""
    made: dict[int, bytes] = {}
    group, size = -1, 0
    tracker = Tracker(log.aborted)
    for base in sorted(log.segments):
        data = log.segments[base]
        if base > latest:
            made[base] = data
            continue
        if group < 0 or size + len(data) > segment_bytes:
            group, size = base, 0
            made[group] = b""
        size += len(data)
        for batch in decode(data):
            made[group] += _batch(batch, tracker, producers, keys, latest, stop, now, retention, data)
    return made


def _batch(
    batch: Batch,
    tracker: Tracker,
    producers: dict[int, Producer],
    keys: dict[bytes, int],
    latest: int,
    stop: int,
    now: int,
    retention: int,
    data: bytes,
) -> bytes:
    discards = tracker.discards(batch)
    expired = batch.delete_horizon is not None and batch.delete_horizon <= now
    drops = discards and (not batch.is_control or expired)
    own = producers.get(batch.producer_id)
    is_last = own is not None and (
        batch.last_offset == own.last_offset
        if own.last_offset >= 0
        else batch.is_control and batch.producer_epoch == own.epoch
    )
    kept = [one for one in batch.records if not drops and _stays(one, batch, keys, latest, expired)]
    if not kept:
        if not is_last and batch.last_offset + 1 != stop:
            return b""
        return _encode(batch, [], -1, None)
    tombstone = any(one.value is None for one in kept)
    needs = batch.delete_horizon is None and (tombstone or (batch.is_control and discards))
    if len(kept) == len(batch.records) and not needs:
        return data[batch.position : batch.position + batch.size]
    horizon = now + retention if needs else batch.delete_horizon
    return _encode(batch, kept, kept[0].timestamp if horizon is None else horizon, horizon)


def _stays(record: Record, batch: Batch, keys: dict[bytes, int], latest: int, expired: bool) -> bool:
    if batch.is_control or record.offset > latest:
        return True
    if record.key is None or keys.get(record.key, -1) > record.offset:
        return False
    return record.value is not None or not expired


def _encode(batch: Batch, kept: list[Record], base_timestamp: int | None, horizon: int | None) -> bytes:
    first, base = batch.base_offset or 0, -1 if base_timestamp is None else base_timestamp
    times = [-1 if one.timestamp is None else one.timestamp for one in kept]
    appended = batch.timestamp_type == LOG_APPEND_TIME
    return encode_batch(
        b"".join(
            encode_record(one.offset - first, time - base, one.key, one.value, one.headers)
            for one, time in zip(kept, times, strict=True)
        ),
        record_count=len(kept),
        base_offset=first,
        last_offset_delta=batch.last_offset - first,
        codec=batch.codec if kept else 0,
        timestamp_type=LOG_APPEND_TIME if appended else CREATE_TIME,
        base_timestamp=base,
        max_timestamp=max(times) if kept and not appended else batch.max_timestamp,
        delete_horizon=horizon is not None,
        leader_epoch=batch.leader_epoch,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        is_transactional=batch.is_transactional,
        is_control=batch.is_control,
    )
