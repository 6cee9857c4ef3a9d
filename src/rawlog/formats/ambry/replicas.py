"""Two replicas of one partition against each other: which blobs differ, and how."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rawlog.checksums import crc32
from rawlog.findings import Finding, Findings, Severity
from rawlog.format import File
from rawlog.formats.ambry import keys
from rawlog.formats.ambry.layouts import HEADERS
from rawlog.formats.ambry.state import DELETED, Entry, state_of
from rawlog.formats.ambry.store import Store, build_ledger, open_store, stores
from rawlog.storage import Source

MISSING, STATE, CONTENT = "ambry.replica.missing", "ambry.replica.state", "ambry.replica.content"


@dataclass(slots=True)
class _Blob:
    found: Entry
    put: Entry | None
    path: str | None


def compare_stores(one: str | Sequence[File], other: str | Sequence[File], now: int = 0) -> Findings:
    """Findings on every blob that two replicas do not agree on: missing, in another state, or of other content.

    `now` (milliseconds) decides which blobs have expired; 0: none. A blob that is deleted on both sides may have lost its content on one
    of them. Segments need not be alike: replicas write in the order in which they receive.
    """
    first, second = _open(one), _open(other)
    result = Findings(files=len(first.logs) + len(second.logs))
    result.items += _differences(first, second, now)
    return result


def _open(what: str | Sequence[File]) -> Store:
    if isinstance(what, str):
        return open_store(what)
    return next(store for store in stores(what) if store.logs)


def _blobs(store: Store) -> dict[bytes, _Blob]:
    ledger = build_ledger(store)
    found = {}
    for identity in ledger:
        entry, put = ledger.find(identity), ledger.put_of(identity)
        if entry is not None:
            found[identity] = _Blob(entry, put, None if put is None else store.logs[put.segment].path)
    return found


def _differences(first: Store, second: Store, now: int) -> Iterator[Finding]:
    here, there = _blobs(first), _blobs(second)
    for identity, blob in here.items():
        if identity not in there:
            yield _finding(MISSING, blob, f"{second.folder} does not know it", None, None)
    for identity, blob in there.items():
        if identity not in here:
            yield _finding(MISSING, blob, f"{first.folder} does not know it", None, None)
    for identity in here.keys() & there.keys():
        yield from _compared(here[identity], there[identity], now)


def _compared(one: _Blob, other: _Blob, now: int) -> Iterator[Finding]:
    states = [
        f"{state_of(blob.found, now)}, life version {blob.found.life_version}, expires {blob.found.expires}"
        for blob in (one, other)
    ]
    if states[0] != states[1]:
        yield _finding(STATE, one, "another state on the other replica", states[1], states[0])
    if state_of(one.found, now) == state_of(other.found, now) == DELETED:
        return
    sums = [_content(blob) for blob in (one, other)]
    if sums[0] != sums[1]:
        yield _finding(CONTENT, one, "other content on the other replica", sums[1], sums[0])


def _content(blob: _Blob) -> str:
    if blob.put is None or blob.path is None:
        return "none"
    with Source(blob.path) as source:
        raw = source.read(blob.put.offset, blob.put.size)
    # Header and key may be of other versions; what counts stands behind them.
    payload = raw[-_payload(raw) :]
    return f"{len(payload)} bytes, crc {crc32(payload):08x}"


def _payload(raw: bytes) -> int:
    layout = HEADERS[int.from_bytes(raw[:2], "big")]
    return int.from_bytes(raw[layout.at("payload_size") : layout.after("payload_size")], "big")


def _finding(code: str, blob: _Blob, what: str, expected: str | None, found: str | None) -> Finding:
    position = None if blob.put is None else blob.put.offset
    message = f"blob {keys.text_of(blob.found.key)}: {what}"
    return Finding(code, Severity.ERROR, blob.path, "ambry.log", position, None, None, message, expected, found)


__all__ = ["CONTENT", "MISSING", "STATE", "compare_stores"]
