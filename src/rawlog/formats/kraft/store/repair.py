"""Repair of a metadata directory: what of its log and snapshots a controller can start from, or a new snapshot of what can be read.

A metadata log must have no gap. Of the stretches without one only the last can be kept as a log, and only if it begins at offset 0 or a
snapshot leads into it; what the others hold goes into a new snapshot.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from rawlog.core.errors import AccessError, CorruptError, DataError, OptionError
from rawlog.core.format import File, Unit
from rawlog.core.report import Account
from rawlog.formats.kafka.layouts import BATCH, ControlType
from rawlog.formats.kafka.messages import decode_record, framed_types
from rawlog.formats.kafka.paths import METADATA_TOPIC, split
from rawlog.formats.kafka.store.partition_writer import segment_name
from rawlog.formats.kafka.store.rebuild import rebuild_partition
from rawlog.formats.kafka.store.works import Partitions, keep_surroundings
from rawlog.formats.kraft.paths import CHECKPOINT_FORMAT, QUORUM_FORMAT, snapshot_id
from rawlog.formats.kraft.quorum import parse
from rawlog.formats.kraft.store.placing import Batch, Placed, is_gapped, place, read_batches
from rawlog.formats.kraft.store.replica import LARGEST_TEXT, Replica, is_whole, last_time, replicas
from rawlog.formats.kraft.store.state import State
from rawlog.formats.kraft.writer import checkpoint_name, write_checkpoint
from rawlog.io.output import new_directory, writing
from rawlog.io.storage import Source, local_path

POLICIES = ("salvage", "broker", "strict")
SHOWN = 20


@dataclass(slots=True)
class Snapshot:
    """A snapshot: its sound batches, copies left out and offsets and epochs set right, and whether it has all of them."""

    file: File
    offset: int
    epoch: int
    batches: list[Batch]
    is_whole: bool
    #: Of the last record of the log that went into it, milliseconds.
    time: int | None = None
    copies: int = 0
    #: Bytes that are no sound batch.
    cut: int = 0

    @classmethod
    def read(cls, file: File) -> Snapshot:
        """What is sound of a snapshot. Its batches are numbered from 0 on, and carry the epoch of its name."""
        offset, epoch = snapshot_id(file.path) or (0, 0)
        batches: list[Batch] = []
        seen: set[tuple[int, int]] = set()
        found = read_batches(file)
        position, follows = 0, []
        for one in found:
            if (one.crc, one.count) not in seen:
                seen.add((one.crc, one.count))
                one.first, one.epoch = (batches[-1].end if batches else 0), epoch
                batches.append(one)
                follows.append(one.start == position)
            position = one.stop
        controls = [kind for one in batches if one.is_control for _, kind, _ in one.records()]
        ends = bool(batches) and batches[0].is_control and batches[-1].is_control
        is_whole = ends and controls[0] == ControlType.SNAPSHOT_HEADER and controls[-1] == ControlType.SNAPSHOT_FOOTER
        is_whole = is_whole and controls.count(ControlType.SNAPSHOT_FOOTER) == 1 and not is_gapped(batches, follows)
        cut = file.size - sum(one.stop - one.start for one in found)
        return cls(file, offset, epoch, batches, is_whole, last_time(file), len(found) - len(batches), cut)

    @property
    def name(self) -> str:
        return split(self.file.path)[1]

    @property
    def right_name(self) -> str:
        return checkpoint_name(self.offset, self.epoch)

    @property
    def has_records(self) -> bool:
        """Whether there is anything of the state in it."""
        return any(not one.is_control for one in self.batches)

    def note(self, account: Mended) -> None:
        """Say what was set right."""
        for one in self.batches:
            if one.said_epoch != self.epoch:
                account.notes.append(f"{self.name}: byte {one.start:,}: epoch {one.said_epoch} set to {self.epoch}")
            if one.is_rebased:
                account.notes.append(f"{self.name}: byte {one.start:,}: base offset {one.said} set to {one.first}")
            account.batches_changed += one.is_changed
        if self.copies:
            account.notes.append(f"{self.name}: {self.copies:,} batches that are there twice left out")
            account.batches_changed += self.copies
        if self.cut:
            account.notes.append(f"{self.name}: {self.cut:,} bytes between its batches left out")
            account.bytes_cut += self.cut

    def load(self, state: State) -> None:
        """Take its records into a state. Of a topic that the state has, partitions stay: their batch may be the one that is lost."""
        for one in self.batches:
            for number, (control, kind, value) in enumerate(one.records()):
                if control:
                    state.add_control(one.first + number, -1 if kind is None else kind, value or b"")
                elif not _is_known_topic(state, value or b""):
                    state.add(one.first + number, value or b"")


def _is_known_topic(state: State, value: bytes) -> bool:
    try:
        key, _, message = decode_record(value)
    except DataError:
        return False
    return framed_types()[key].name == "TopicRecord" and bytes(message["topicId"]) in state.topics


@dataclass(slots=True)
class Mended(Account):
    """What became of a metadata directory."""

    target: str = ""
    policy: str = "salvage"
    segments: int = 0
    snapshots: int = 0
    bytes_kept: int = 0
    bytes_cut: int = 0
    #: Batches whose base offset, or in snapshots whose epoch, was set right: no checksum covers them.
    batches_changed: int = 0
    end_offset: int = 0
    #: The name of the snapshot that was made of what could be read, where one was needed.
    fresh_snapshot: str | None = None
    #: Offsets whose records are no part of what was written: first, and last where it is known.
    lost: list[tuple[int, int | None]] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether nothing had to be dropped or changed."""
        return not (self.bytes_cut or self.batches_changed or self.lost) and self.fresh_snapshot is None

    def lines(self) -> list[str]:
        """The notes, what was lost, the counts."""
        lost = [
            f"lost offsets {first} to {last}" if last is not None else f"lost offsets from {first} on, perhaps"
            for first, last in self.lost
        ]
        counts = f"{self.segments:,} segments, {self.snapshots:,} snapshots, {self.bytes_kept:,} bytes kept, {self.bytes_cut:,} cut"
        return [*self.notes, *lost, f"{counts}; the log ends at offset {self.end_offset:,}"]


def repair(files: Sequence[File], target: str, options: Mapping[str, str]) -> Account:
    """Mend the one metadata directory among the files. OptionError for an unknown policy; AccessError if there is none, or several."""
    policy = options.get("policy", "salvage")
    for name in options:
        if name != "policy":
            raise OptionError(f"option {name}: a metadata directory has only policy")
    if policy not in POLICIES:
        raise OptionError(f"policy {policy!r}: {', '.join(POLICIES)} expected")
    found = [
        one
        for one in replicas([file for file in files if file.format != QUORUM_FORMAT])
        if one.segments or one.snapshots
    ]
    # Where both are gone, what stood beside them still tells where they were.
    folders = {str(file.place.group) for file in files if file.place.topic == METADATA_TOPIC} if not found else ()
    found += [Replica(folder) for folder in sorted(folders)]
    if len(found) != 1:
        raise AccessError(f"{len(found)} metadata directories are here, one expected")
    beside = [file for file in files if file.format == QUORUM_FORMAT]
    with new_directory(target) as folder:
        account = mend(found[0], str(folder), policy, traced_end(files))
        for file in beside:
            _keep_vote(file, folder, account)
    account.target = target
    return account


def rebuild(files: Sequence[File], target: str, options: Mapping[str, str]) -> Account:
    """A metadata directory with the derived files of its log anew; snapshots and the vote, which no log tells, as they are.

    A snapshot that is not whole is left out, as a controller leaves it. DataError for damage in the log.
    """
    account = rebuild_partition(files, target, options)
    for file in files:
        name = split(file.path)[1]
        if file.format == QUORUM_FORMAT or (file.format == CHECKPOINT_FORMAT and file.place.state is None):
            if file.format == CHECKPOINT_FORMAT and not is_whole(file):
                account.notes.append(f"{name}: not whole, left out")
                account.bytes_lost += file.size
            else:
                _copy(file, Path(local_path(target)) / name, 0, file.size)
    return account


def join(units: Sequence[Unit], accounts: Sequence[Account], folder: Path | None) -> Account:
    """What came of the one metadata directory; beside it, what its log directory says of itself."""
    [unit], [account] = units, accounts
    notes = [] if folder is None else keep_surroundings(split(unit.files[0].place.group or "")[0], folder)
    return Partitions(parts={unit.name: account}, notes=notes) if notes else account


def mend(replica: Replica, folder: str, policy: str = "salvage", traced: int = 0) -> Mended:
    """Write a repaired copy of a metadata directory into `folder`, which exists; what was done. The source is not changed. `traced` is
    an offset that the log had reached.

    `broker` keeps the log up to its first damage. `salvage` keeps every sound batch at its offset. Where offsets are missing, a controller
    can start from what follows the last gap only: if no snapshot leads into that, one is made of all that can be read, including sound
    batches of snapshots that are not whole. CorruptError under `strict` if anything would be cut or changed. Index files are left out:
    every start of a controller rebuilds them.
    """
    account = Mended(policy=policy)
    snapshots = [Snapshot.read(one) for one in replica.newest_first]
    known = max([traced, *(one.offset for one in snapshots if one.is_whole)], default=0)
    found = _first_stretch(replica) if policy == "broker" else place(replica.segments, known)
    stretches = find_stretches(found.batches)
    snapshots = _named_right(snapshots, found.batches, account)
    whole = [one for one in snapshots if one.is_whole]
    last = stretches[-1] if stretches else None
    usable = [one for one in whole if last is None or one.offset >= last[0].first]
    kept = last or []
    if kept and usable and usable[0].offset > kept[-1].end:
        kept = []  # a controller would empty a log that ends before its snapshot
    usable = _in_agreement(replica, usable, kept, account)
    needs = _needed(whole, snapshots, stretches)
    fresh = policy != "strict" and not usable and bool(kept) and kept[0].first > 0
    if policy == "salvage" and needs is not None:
        fresh = True
        if kept and needs > kept[-1].end:
            kept = []
    account.end_offset = max([kept[-1].end if kept else 0, *(one.offset for one in usable), needs or 0])
    _note_batches(replica, found, kept, account, is_folded=fresh and policy != "broker")
    _note_losses(replica, found.batches, whole, account, traced)
    for one in snapshots:
        if one not in usable and one.is_whole and not (fresh and policy == "salvage"):
            account.notes.append(f"{one.name}: from before the log that is kept, left out")
        elif not one.is_whole:
            what = "its sound batches are in the snapshot that was made" if fresh and one.batches else "left out"
            account.notes.append(f"{one.name}: not whole, {what}")
            account.bytes_cut += one.file.size
        elif one in usable:
            one.note(account)
    if policy == "strict" and not account.is_whole:
        raise CorruptError(f"{(account.notes or ['damaged'])[0]}; the policy is strict", path=replica.folder)
    for one in usable:
        _write_batches(one.batches, Path(folder) / one.right_name)
    account.segments = _write_segments(kept, folder, account)
    account.snapshots = len(usable)
    if fresh:
        base = (kept, []) if policy == "broker" else (found.batches, snapshots)
        _fresh(*base, folder, account, max(account.end_offset, 1))
    elif not kept and not usable:  # as a controller begins one
        (Path(folder) / segment_name(0, "log")).touch()
    return account


def find_stretches(batches: Sequence[Batch]) -> list[list[Batch]]:
    """Batches in their order, in stretches without a gap."""
    found: list[list[Batch]] = []
    for one in batches:
        if found and found[-1][-1].end == one.first:
            found[-1].append(one)
        else:
            found.append([one])
    return found


def _first_stretch(replica: Replica) -> Placed:
    """What a broker keeps: everything up to the first byte or offset that is wrong."""
    kept: list[Batch] = []
    for segment in replica.segments:
        position = 0
        for one in read_batches(segment):
            if (
                one.start != position
                or (kept and kept[-1].end != one.said)
                or one.said < (segment.place.start_offset or 0)
            ):
                return Placed(kept, [])
            kept.append(one)
            position = one.stop
        if position < segment.size and not _is_zero(segment, position):
            break
    return Placed(kept, [])


def _needed(
    whole: Sequence[Snapshot], snapshots: Sequence[Snapshot], stretches: Sequence[Sequence[Batch]]
) -> int | None:
    """The offset of the newest snapshot that is not whole and that holds what neither a whole one nor the log leads to; None if there is
    none.
    """
    reached = max((one.offset for one in whole), default=0)
    for stretch in stretches:
        if stretch[0].first <= reached:
            reached = max(reached, stretch[-1].end)
    partial = [one.offset for one in snapshots if not one.is_whole and one.has_records and one.offset > reached]
    return max(partial, default=None)


def _named_right(snapshots: list[Snapshot], batches: Sequence[Batch], account: Mended) -> list[Snapshot]:
    """The snapshots, newest first, of each offset one: where the log has the last offset that a snapshot's name says, and at another
    time than the snapshot itself says, it gets the name that its time tells.
    """
    times: dict[int, list[Batch]] = {}
    for batch in batches:
        times.setdefault(batch.time, []).append(batch)
    starts = [one.first for one in batches]
    made: dict[int, Snapshot] = {}
    for one in snapshots:
        at = bisect_right(starts, one.offset - 1) - 1
        holder = batches[at] if at >= 0 and batches[at].end >= one.offset else None
        if one.is_whole and one.offset > 0 and one.time is not None and holder is not None and holder.time != one.time:
            right = times.get(one.time, [])
            if len(right) != 1:
                account.notes.append(f"{one.name}: named for another offset than its content is of, left out")
                account.bytes_cut += one.file.size
                continue
            one.offset, one.epoch = right[0].end, right[0].epoch
            for batch in one.batches:
                batch.epoch = one.epoch
            account.notes.append(f"{one.name}: of offset {one.offset} as the times of the log tell, renamed")
            account.batches_changed += 1
        made.setdefault(one.offset, one)
        if one.is_whole and not made[one.offset].is_whole:
            made[one.offset] = one
    return sorted(made.values(), key=lambda one: (one.offset, one.epoch), reverse=True)


def _in_agreement(replica: Replica, usable: list[Snapshot], kept: Sequence[Batch], account: Mended) -> list[Snapshot]:
    """The snapshots without those that the log, from offset 0 on, contradicts: the log is what they were made of."""
    if not kept or kept[0].first > 0:
        return usable
    agreed = []
    for one in usable:
        grown, loaded = State(), State()
        _replay(grown, kept, one.offset)
        one.load(loaded)
        same = list(map(str, grown.image())) == list(map(str, loaded.image()))
        if one.offset == 0 or one.offset > kept[-1].end or grown.open_transaction is not None or same:
            agreed.append(one)
        else:
            account.notes.append(f"{one.name}: holds another state than the log leads to, left out")
            account.bytes_cut += one.file.size
    return agreed


def traced_end(files: Sequence[File]) -> int:
    """An offset that the log of a metadata directory had reached at least, as the files beside it tell; 0 if none does."""
    ends = [0]
    for file in files:
        if file.problem is not None or file.place.topic != METADATA_TOPIC or file.place.state is not None:
            continue
        if file.format == "kafka.snapshot":
            ends.append(file.place.start_offset or 0)
        elif file.format == "kafka.epochs":
            with Source(file.path) as source:
                ends.append(int(source.read(0, LARGEST_TEXT).split() not in ([], [b"0", b"0"])))
    return max(ends)


def _write_segments(kept: Sequence[Batch], folder: str, account: Mended) -> int:
    """Write batches as segments, those of one source file together; how many segments."""
    segments: list[list[Batch]] = []
    for one in kept:
        if segments and segments[-1][-1].file.path == one.file.path:
            segments[-1].append(one)
        else:
            segments.append([one])
    for batches in segments:
        account.bytes_kept += _write_batches(batches, Path(folder) / segment_name(batches[0].first, "log"))
    return len(segments)


def _write_batches(batches: Sequence[Batch], target: Path) -> int:
    """Write batches with the offsets and epochs that they get, as a file; how many bytes."""
    size = 0
    with ExitStack() as stack, writing(str(target)) as out:
        sources: dict[str, Source] = {}
        for one in batches:
            if one.file.path not in sources:
                sources[one.file.path] = stack.enter_context(Source(one.file.path))
            data = bytearray(sources[one.file.path].read(one.start, one.stop - one.start))
            for field, value in (("base_offset", one.first), ("leader_epoch", one.epoch)):
                data[BATCH.at(field) : BATCH.after(field)] = value.to_bytes(
                    BATCH.after(field) - BATCH.at(field), "big", signed=True
                )
            out.write(data)
            size += len(data)
    return size


def _note_batches(replica: Replica, found: Placed, kept: Sequence[Batch], account: Mended, *, is_folded: bool) -> None:
    """Note what becomes of every byte of the segments; zeros at the end of a file are no loss."""
    reasons = {(one.file.path, one.start): why for one, why in found.dropped}
    numbers = {id(one) for one in kept}
    folded = {(one.file.path, one.start) for one in found.batches if id(one) not in numbers} if is_folded else set()
    for segment in replica.segments:
        name, position = split(segment.path)[1], 0
        mine = sorted((one for one in kept if one.file.path == segment.path), key=lambda one: one.start)
        for start, stop in [*((one.start, one.stop) for one in mine), (segment.size, segment.size)]:
            if start > position:
                padding = start == segment.size and _is_zero(segment, position)
                inside = [why for (path, at), why in reasons.items() if path == segment.path and position <= at < start]
                text = f"{name}: {'zeros in ' if padding else ''}bytes {position:,} to {start:,} left out"
                if any(path == segment.path and position <= at < start for path, at in folded):
                    text += "; what can be read of them is in the snapshot that was made"
                account.notes.append(text + (f": {inside[0]}" if inside else ""))
                account.bytes_cut += 0 if padding else start - position
            position = stop
    for one in kept:
        name = split(one.file.path)[1]
        if one.is_rebased:
            account.notes.append(f"{name}: byte {one.start:,}: base offset {one.said} set to {one.first}")
        if one.epoch != one.said_epoch:
            account.notes.append(f"{name}: byte {one.start:,}: epoch {one.said_epoch} set to {one.epoch}")
        account.batches_changed += one.is_changed
    for before, after in pairwise(kept):
        if before.file.path == after.file.path and before.start > after.start:
            account.notes.append(f"{split(after.file.path)[1]}: byte {after.start:,}: moved to its place by offset")
            account.batches_changed += 1


def _is_zero(file: File, position: int) -> bool:
    with Source(file.path) as source:
        while piece := source.read(position, 1 << 20):
            if any(piece):
                return False
            position += len(piece)
    return True


def _note_losses(
    replica: Replica, batches: Sequence[Batch], whole: Sequence[Snapshot], account: Mended, traced: int
) -> None:
    """The offsets whose records are neither in a batch that has its place nor in a whole snapshot."""
    reached = max((one.offset for one in whole), default=0)
    for one in batches if account.policy != "broker" else ():
        if one.first > reached:
            account.lost.append((reached, one.first - 1))
        reached = max(reached, one.end)
    if account.policy == "broker":
        reached = max([account.end_offset, *(one.end for one in batches)])
        if batches and batches[0].first > 0 and not whole:
            account.lost.append((0, batches[0].first - 1))
    account.end_offset = max(account.end_offset, reached)
    later = [one for one in replica.segments if (one.place.start_offset or 0) > reached]
    if later and account.policy != "broker":
        first = min(one.place.start_offset or 0 for one in later)
        account.lost.append((reached, first - 1))
        account.lost += [(first, None)] * any(not _is_zero(one, 0) for one in later)
    elif not batches and reached < traced:
        account.notes.append("of the log nothing is left")
        account.lost.append((reached, None))
    elif _has_more(replica, batches, reached):
        account.lost.append((reached, None))


def _has_more(replica: Replica, batches: Sequence[Batch], reached: int) -> bool:
    """Whether bytes that are no batch, and not zeros, follow the last batch of the log."""
    if not batches:
        return any(segment.size and not _is_zero(segment, 0) for segment in replica.segments)
    last = batches[-1]
    if last.end < reached:
        return False
    ends = [(last.file, last.stop)]
    held = {one.file.path for one in batches}
    ends += [
        (one, 0) for one in replica.segments if one.path not in held and (one.place.start_offset or 0) >= last.first
    ]
    return any(position < file.size and not _is_zero(file, position) for file, position in ends)


def _replay(state: State, batches: Sequence[Batch], stop: int | None = None) -> None:
    """Take the records of batches from the end of a state on, up to an offset."""
    for one in batches:
        if one.end <= state.end_offset or (stop is not None and one.first >= stop):
            continue
        for number, (control, kind, value) in enumerate(one.records()):
            offset = one.first + number
            if offset < state.end_offset or (stop is not None and offset >= stop):
                continue
            if control:
                state.add_control(offset, -1 if kind is None else kind, value or b"")
            else:
                state.add(offset, value or b"")
        state.end_offset, state.epoch, state.timestamp = one.end, one.epoch, one.time


def _fresh(batches: Sequence[Batch], snapshots: Sequence[Snapshot], folder: str, account: Mended, end: int) -> None:
    """A snapshot of what can be read: from the newest whole one on all batches, and of newer ones that are not whole what is sound."""
    state = State()
    base = next((one for one in snapshots if one.is_whole), None)
    if base is not None:
        base.load(state)
        state.end_offset, state.epoch, state.timestamp = base.offset, base.epoch, base.time or -1
    for one in sorted(snapshots, key=lambda one: one.offset):
        if one.is_whole or not one.has_records or one.offset <= state.end_offset:
            continue
        reached = state.end_offset
        for batch in batches:
            reached = batch.end if batch.first <= reached < batch.end else reached
        if reached < one.offset:  # the log alone does not lead there
            _replay(state, batches, one.offset)
            one.load(state)
            state.end_offset, state.epoch = one.offset, max(one.epoch, state.epoch)
            state.timestamp = max(one.time or -1, state.timestamp)
    _replay(state, batches)
    state.end_offset = end
    account.fresh_snapshot = split(write_checkpoint(folder, state))[1]
    account.snapshots += 1
    account.notes.append(f"{account.fresh_snapshot}: made of what could be read ({state.records:,} records)")
    for problem in state.problems[:SHOWN]:
        account.notes.append(f"offset {problem.offset}: {problem.message}; passed over")
    if len(state.problems) > SHOWN:
        account.notes.append(f"{len(state.problems) - SHOWN:,} more records were passed over")


def _copy(file: File, target: Path, start: int, stop: int) -> int:
    """Bytes of a file as a new one; how many."""
    with Source(file.path) as source, writing(str(target)) as out:
        position = start
        while position < stop and (piece := source.read(position, min(1 << 20, stop - position))):
            out.write(piece)
            position += len(piece)
    return position - start


def _keep_vote(file: File, folder: Path, account: Mended) -> None:
    """The election state, if it is one: without it a controller could vote twice in an epoch."""
    with Source(file.path) as source:
        data = source.read(0, LARGEST_TEXT)
    try:
        parse(data)
    except ValueError:
        account.notes.append(f"{split(file.path)[1]}: no election state, left out")
        account.bytes_cut += file.size
        return
    with writing(str(folder / split(file.path)[1])) as out:
        out.write(data)
