"""What files other than the log know of transactions: transaction indexes, producer snapshots, and the coordinator's topic."""

from __future__ import annotations

import glob
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rawlog.core.errors import RawlogError
from rawlog.core.format import File, Place
from rawlog.core.status import Status
from rawlog.formats.kafka.heads import heads
from rawlog.formats.kafka.layouts import NONE
from rawlog.formats.kafka.paths import directory_place, split
from rawlog.formats.kafka.store.state import Aborted
from rawlog.formats.kafka.store.survey import aborted_in, snapshot_rows
from rawlog.io.storage import exists, is_remote, listing, local_path
from rawlog.io.walk import walk

STATE_TOPIC = "__transaction_state"
STATE_PARTITIONS = 50
"""So many partitions has the topic unless configured otherwise; looked for by number where directories cannot be listed cheaply."""
ENDLESS = (1 << 63) - 1
SEGMENT = 1 << 31
"""So many offsets a segment holds at most."""


class Indexes:
    """The transaction indexes of a partition: what they name, and where they would name everything."""

    def __init__(self, files: Sequence[File], kept: Iterable[tuple[int, int]]) -> None:
        """`kept` are the producers and offsets of ABORT markers that are left and end a transaction with records."""
        self.files = [one for one in files if one.place.state is None and one.problem is None]
        self.aborted: dict[int, list[Aborted]] = defaultdict(list)
        self.bases = sorted({one.place.start_offset for one in self.files if one.place.start_offset is not None
                             and one.format in ("kafka.log", "kafka.index", "kafka.timeindex", "kafka.txnindex")})  # fmt: skip
        self._whole: dict[int, bool] = {}
        self._reaches: dict[int, bool] = {}
        listed: set[tuple[int, int]] = set()
        for base in self.bases:
            file = self._file(base, "kafka.txnindex")
            entries = [] if file is None else _entries_of(file, base)
            has_index = self._file(base, "kafka.index") is not None or self._file(base, "kafka.timeindex") is not None
            self._whole[base] = entries is not None and (file is not None or has_index)
            for one in entries or ():
                self.aborted[one.producer_id].append(one)
                listed.add((one.producer_id, one.last_offset))
        for number, offset in kept:
            segment = self._base_of(offset)
            if (number, offset) not in listed and segment is not None:
                self._whole[segment] = False
                if self._file(segment, "kafka.txnindex") is None:  # others that are missing may have been there too
                    for base in self.bases:
                        self._whole[base] &= self._file(base, "kafka.txnindex") is not None

    def _spans(self) -> Iterator[tuple[int, int, int]]:
        for number, base in enumerate(self.bases):
            yield base, base, self.bases[number + 1] if number + 1 < len(self.bases) else ENDLESS

    def _file(self, base: int, format: str) -> File | None:
        return next((one for one in self.files if one.format == format and one.place.start_offset == base), None)

    def _base_of(self, offset: int) -> int | None:
        at = bisect_right(self.bases, offset)
        return self.bases[at - 1] if at else None

    def tells_all(self, start: int, stop: int, end: int) -> bool:
        """Whether every abort with a marker from `start` up to `stop` would be named. `end` is where the log ended, as far as known."""
        for base, first, following in self._spans():
            if following <= start or first >= stop:
                continue
            if not self._whole[base]:
                return False
            # Another segment, gone with all of its files, may have been between this one and the next.
            edge = following if following != ENDLESS else end
            if stop >= edge and not self._is_long(base, edge):
                return False
        return bool(self.bases) and self.bases[0] <= start

    def _is_long(self, base: int, edge: int) -> bool:
        """Whether a segment's last batch, sound or not, ends where the next segment begins."""
        if base not in self._reaches:
            file = self._file(base, "kafka.log")  # where it is gone, what is left next to it tells up to where it went
            self._reaches[base] = file is None or _end_of(file) == edge
        return self._reaches[base]


def _entries_of(file: File, start: int) -> list[Aborted] | None:
    """The entries of the transaction index of a segment that begins at an offset; None if one is impossible."""
    try:
        found = [one for _, one in aborted_in(file)]
    except RawlogError:
        return None
    before = start - 1
    for one in found:
        if (
            not before < one.last_offset < start + SEGMENT
            or not 0 <= one.first_offset <= one.last_offset
            or one.producer_id < 0
        ):
            return None
        before = one.last_offset
    return found


def _end_of(file: File) -> int | None:
    """The offset after the last frame of a segment, by its own header, if frames reach to the end of the file."""
    from rawlog.formats.kafka import LOG

    end = None
    try:
        for frames in walk(file, LOG, errors="skip"):
            head = heads(frames)
            if len(frames):
                end = int(head["last_offset"][-1]) + 1
            if frames.last and (frames.status is not Status.OK or frames.reached_in_file != file.size):
                return None
    except RawlogError:
        return None
    return end


def snapshots_of(files: Sequence[File]) -> dict[int, dict[int, dict[str, int]]]:
    """The entries of every sound producer snapshot, by offset and producer."""
    found = {}
    for file in files:
        if file.format == "kafka.snapshot" and file.place.state is None and file.problem is None:
            try:
                rows = {row["producer_id"]: row for _, row in snapshot_rows(file)}
            except RawlogError:
                continue
            found[file.place.start_offset or 0] = rows
    return found


@dataclass(frozen=True, slots=True)
class State:
    """A decision of the transaction coordinator, or a transaction that goes on."""

    epoch: int
    status: str
    start: int
    update: int
    partitions: tuple[tuple[str, int], ...]
    version: int


def states_near(folder: str | None) -> dict[int, list[State]]:
    """What `__transaction_state` in the log directory of a partition says of every producer, in order."""
    from rawlog.formats.kafka.internal import transaction_states

    found: dict[int, list[State]] = defaultdict(list)
    if folder is None:
        return found
    parent = split(folder)[0] or ("/" if folder.startswith("/") else ".")
    for path in _state_folders(parent):
        files = []
        for entry in listing(path):
            name = split(entry.path)[1]
            if name.endswith(".log") and name[:-4].isdigit() and entry.problem is None:
                place = directory_place(path)
                place = Place(topic=place.topic, partition=place.partition, start_offset=int(name[:-4]), group=path)
                files.append(File(entry.path, entry.size, format="kafka.log", place=place))
        try:
            for batch in transaction_states(files, {"errors": "skip"}) if files else ():
                _take_states(batch.to_pylist(), found)
        except RawlogError:
            continue
    return found


def _state_folders(parent: str) -> list[str]:
    if not is_remote(parent):
        return sorted(glob.glob(f"{glob.escape(local_path(parent))}/{STATE_TOPIC}-[0-9]*"))
    named = (f"{parent}/{STATE_TOPIC}-{number}" for number in range(STATE_PARTITIONS))
    return [one for one in named if exists(one)]


def _take_states(rows: list[dict[str, object]], found: dict[int, list[State]]) -> None:
    for row in rows:
        if row["producer_id"] is None or row["status"] is None or row["state"] != "committed":
            continue
        listed: list[dict[str, object]] = row["partitions"] or []  # type: ignore[assignment]
        found[int(str(row["producer_id"]))].append(
            State(
                int(str(row["producer_epoch"])),
                str(row["status"]),
                _ms(row["start_timestamp"]),
                _ms(row["update_timestamp"]),
                tuple((str(one["topic"]), int(str(one["partition"]))) for one in listed),
                int(str(row["client_transaction_version"] or 0)),
            )
        )


def _ms(moment: object) -> int:
    return NONE if moment is None else round(moment.timestamp() * 1000)  # type: ignore[attr-defined]


__all__ = ["ENDLESS", "STATE_TOPIC", "Indexes", "State", "snapshots_of", "states_near"]
