"""Mending a metadata directory: what of its log and snapshots a controller can start from, or a fresh snapshot of what can be read.

A metadata log must have no gap. Of the stretches that are sound, only one can be kept, and only if it begins at offset 0 or a snapshot
leads into it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rawlog.account import Account
from rawlog.errors import AccessError, CorruptError, OptionError
from rawlog.format import File, Place, Unit
from rawlog.formats.kafka.heads import Heads, heads
from rawlog.formats.kafka.kernels.heads import NAMES
from rawlog.formats.kafka.layouts import BATCH
from rawlog.formats.kafka.partition_writer import segment_name
from rawlog.formats.kafka.paths import METADATA_TOPIC, split
from rawlog.formats.kafka.rebuild import rebuild_partition
from rawlog.formats.kafka.salvage import HUGE, choose
from rawlog.formats.kafka.works import Partitions, keep_surroundings
from rawlog.formats.kraft.paths import CHECKPOINT_FORMAT, LOG_FORMAT, QUORUM_FORMAT, snapshot_id
from rawlog.formats.kraft.quorum import parse
from rawlog.formats.kraft.replica import LARGEST_TEXT, Replica, is_whole, replicas, sound_batches
from rawlog.formats.kraft.writer import write_checkpoint
from rawlog.output import new_directory, writing
from rawlog.storage import Source, local_path
from rawlog.walk import walk

POLICIES = ("salvage", "broker", "strict")
SHOWN = 20


@dataclass(frozen=True, slots=True)
class Piece:
    """Batches that stand together in one segment: bytes `start` to `stop`, from offset `first` on. `is_rebased` if that is not the
    offset which the one batch says.
    """

    file: File
    start: int
    stop: int
    first: int
    is_rebased: bool = False


@dataclass(slots=True)
class Stretch:
    """Pieces whose offsets follow one another without a gap; `end` is the offset behind the last."""

    pieces: list[Piece]
    end: int

    @property
    def first(self) -> int:
        return self.pieces[0].first


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
    """Write a mended copy of a metadata directory into `folder`, which is there; what was done. The source is not touched. `traced` is
    an offset that the log had reached.

    `broker` keeps the log up to its first damage. `salvage` keeps the last sound stretch if a snapshot leads into it, so that the newest
    state is kept although something before it is damaged; if none does, it makes a snapshot of all that can be read. CorruptError under
    `strict` if anything would be cut. Index files are left out: every start of a controller builds them anew.
    """
    account = Mended(policy=policy)
    stretches = find_stretches(replica)
    whole = [one for one in replica.newest_first if is_whole(one)]
    for one in replica.snapshots:
        if one not in whole:
            account.notes.append(f"{split(one.path)[1]}: not whole, left out")
            account.bytes_cut += one.size
    chosen = None
    if stretches:
        chosen = stretches[0] if policy == "broker" else max(stretches, key=lambda one: one.end)
    first, end = (chosen.first, chosen.end) if chosen is not None else (0, 0)
    usable = [one for one in whole if _offset(one) >= first]
    if chosen is not None and usable and _offset(usable[0]) > end:
        chosen = None  # a controller would empty a log that ends before its snapshot
    kept = chosen.pieces if chosen is not None else []
    account.end_offset = max([end if kept else 0, *map(_offset, usable)])
    _tell(replica, kept, account)
    _losses(replica, stretches, first, bool(usable), account)
    if not stretches and account.end_offset < traced:
        account.notes.append("of the log nothing is left")
        account.lost.append((account.end_offset, None))
    for piece in kept:
        if piece.is_rebased:
            name = split(piece.file.path)[1]
            account.notes.append(
                f"{name}: byte {piece.start:,}: base offset set to {piece.first}, which is missing there"
            )
            account.batches_changed += 1
    odd = {one.path: _odd_epochs(one) for one in usable}
    for one in usable:
        for position, epoch in odd[one.path]:
            account.notes.append(f"{split(one.path)[1]}: byte {position:,}: epoch {epoch} set to that of the name")
            account.batches_changed += 1
    if policy == "strict" and not account.is_whole:
        raise CorruptError(f"{(account.notes or ['damaged'])[0]}; the policy is strict", path=replica.folder)
    for one in usable:
        copy = Path(folder) / split(one.path)[1]
        _copy(one, copy, 0, one.size)
        if odd[one.path]:
            epoch = (snapshot_id(one.path) or (0, 0))[1]
            _set(copy, [position for position, _ in odd[one.path]], "leader_epoch", epoch)
    for piece in kept:
        copy = Path(folder) / segment_name(piece.first, "log")
        account.bytes_kept += _copy(piece.file, copy, piece.start, piece.stop)
        if piece.is_rebased:
            _set(copy, [0], "base_offset", piece.first)
    account.segments, account.snapshots = len(kept), len(usable)
    if not kept and not usable:  # as a controller begins one
        (Path(folder) / segment_name(0, "log")).touch()
    if kept and first > 0 and not usable:
        _fresh(replica, folder, end, policy, account)
    return account


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


def _odd_epochs(snapshot: File) -> list[tuple[int, int]]:
    """Where the batches of a whole snapshot begin that have another epoch than its name, and which."""
    from rawlog.formats.kafka import LOG

    _, named = snapshot_id(snapshot.path) or (0, 0)
    found: list[tuple[int, int]] = []
    for frames in walk(snapshot, LOG, errors="skip"):
        epochs = heads(frames)["leader_epoch"]
        odd = np.flatnonzero(epochs != named)
        found += zip(frames.positions[odd].tolist(), epochs[odd].tolist(), strict=True)
    return found


def _set(copy: Path, positions: Sequence[int], field: str, value: int) -> None:
    """Give batches of a file that was written here another value in a field that no checksum covers."""
    with copy.open("r+b") as file:
        for position in positions:
            file.seek(position + BATCH.at(field))
            file.write(value.to_bytes(BATCH.after(field) - BATCH.at(field), "big", signed=True))
        file.flush()
        os.fsync(file.fileno())


def _offset(snapshot: File) -> int:
    return (snapshot_id(snapshot.path) or (0, 0))[0]


def find_stretches(replica: Replica) -> list[Stretch]:
    """The sound batches of a log, in stretches without a gap. A stretch goes on over several segments.

    No checksum covers a base offset: a batch that stands where exactly its offsets are missing gets them, one whose offsets stand in no
    order is passed over.
    """
    found: list[Stretch] = []
    for segment in replica.segments:
        starts, ends, head = _batches(segment)
        chosen = choose(head, segment.place.start_offset or 0, HUGE)
        before = -1
        for number in sorted(set(chosen.order) - set(chosen.moved)):
            first = chosen.rebased.get(number, int(head["base_offset"][number]))
            piece = Piece(segment, int(starts[number]), int(ends[number]), first, number in chosen.rebased)
            if not found or first != found[-1].end:
                found.append(Stretch([piece], first))
            elif piece.start != before or piece.is_rebased or found[-1].pieces[-1].is_rebased:
                found[-1].pieces.append(piece)  # in another segment, behind bytes that are no batch, or not as it was
            else:
                found[-1].pieces[-1] = replace(found[-1].pieces[-1], stop=piece.stop)
            before = piece.stop
            found[-1].end = first + int(head["last_offset"][number] - head["base_offset"][number]) + 1
    return found


def _batches(segment: File) -> tuple[NDArray[np.int64], NDArray[np.int64], Heads]:
    """Where the sound batches of a segment begin and end, and their headers."""
    from rawlog.formats.kafka import LOG

    starts, ends = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    values = [np.empty((len(NAMES), 0), np.int64)]
    for frames in walk(segment, LOG, errors="skip"):
        sound = sound_batches(frames)
        starts.append(frames.positions[sound])
        ends.append((frames.positions + frames.sizes)[sound])
        values.append(heads(frames).values[:, sound])
    return np.concatenate(starts), np.concatenate(ends), Heads(np.concatenate(values, axis=1))


def _tell(replica: Replica, kept: Sequence[Piece], account: Mended) -> None:
    """Note every range of bytes that is not kept; zeros at the end of a file are no loss."""
    for segment in replica.segments:
        name, position = split(segment.path)[1], 0
        edges = [(one.start, one.stop) for one in kept if one.file.path == segment.path]
        for start, stop in [*edges, (segment.size, segment.size)]:
            if start > position:
                padding = start == segment.size and _is_zero(segment, position)
                account.notes.append(
                    f"{name}: {'zeros in ' if padding else ''}bytes {position:,} to {start:,} left out"
                )
                account.bytes_cut += 0 if padding else start - position
            position = stop


def _is_zero(file: File, position: int) -> bool:
    with Source(file.path) as source:
        while piece := source.read(position, 1 << 20):
            if any(piece):
                return False
            position += len(piece)
    return True


def _losses(replica: Replica, stretches: Sequence[Stretch], first: int, has_snapshot: bool, account: Mended) -> None:
    """The offsets whose records are neither in what is kept nor in a snapshot."""
    reached = 0
    for one in stretches if not has_snapshot else ():
        if one.first > reached and (account.policy != "broker" or one.first <= first):
            account.lost.append((reached, one.first - 1))
        reached = max(reached, one.end)
    last = max(stretches, key=lambda one: one.end, default=None)
    if last is None:
        return
    if last.end > account.end_offset:
        account.lost.append((account.end_offset, last.end - 1))
    elif last.end == account.end_offset:
        piece = last.pieces[-1]
        later = [
            one for one in replica.segments if (one.place.start_offset or 0) >= last.end and one.path != piece.file.path
        ]
        ends = [(piece.file, piece.stop), *((one, 0) for one in later)]
        if any(position < file.size and not _is_zero(file, position) for file, position in ends):
            account.lost.append((last.end, None))


def _fresh(replica: Replica, folder: str, end: int, policy: str, account: Mended) -> None:
    """A snapshot of what can be read: of all of it, or under `broker` of what was kept."""
    readable = replica
    if policy == "broker":
        [readable] = replicas([file for file in _listed(folder) if file.format == LOG_FORMAT])
    state = readable.fold(errors="skip")
    state.end_offset = end
    account.fresh_snapshot = split(write_checkpoint(folder, state))[1]
    account.snapshots += 1
    account.notes.append(f"{account.fresh_snapshot}: made of what could be read ({state.records:,} records)")
    for problem in state.problems[:SHOWN]:
        account.notes.append(f"offset {problem.offset}: {problem.message}; passed over")
    if len(state.problems) > SHOWN:
        account.notes.append(f"{len(state.problems) - SHOWN:,} more records were passed over")


def _listed(folder: str) -> list[File]:
    """The segments in a directory of ours."""
    return [
        File(str(path), path.stat().st_size, format=LOG_FORMAT, place=Place(start_offset=int(path.stem), group=folder))
        for path in sorted(Path(folder).glob("*.log"))
    ]


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
