"""Wounds: each damages a copy of a subject and says what kind of wound it is, which frames it destroyed and which may be put right.

To add one: a function with the decorator `wound` that calls methods of `Copy`, says `copy.is_a(KIND)` (a row of the table in
docs/wounds.md) and adds the frames that it destroyed to `copy.lost`.
"""

from __future__ import annotations

import random
import re
import shutil
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

from tests.data.golden import GOLDEN
from tests.reference import kafka as kafka_reference
from tests.wounds.truth import Frame, Sound, Subject

KAFKA, KRAFT, ROCKETMQ, AMBRY, REPLAY = "kafka", "kraft", "rocketmq", "ambry", "replay"


class Unfit(Exception):
    """The subject has no place for this wound."""


class Copy:
    """A copy of a subject that is being wounded."""

    def __init__(self, sound: Sound, root: Path, seed: int = 0) -> None:
        self.sound, self.subject, self.root = sound, sound.subject, root
        self.random = random.Random(seed)
        #: The rows of docs/wounds.md that apply; of several wounds the highest exit code counts.
        self.kinds: list[str] = []
        #: Frames whose records are gone, and frames that a verb may put right or report as lost.
        self.lost: list[Frame] = []
        self.maybe: list[Frame] = []
        #: Frames whose own fields were changed: verbs that look show them as they are stored.
        self.patched: list[Frame] = []
        #: Whether anything in the files shows the loss.
        self.has_evidence = True
        sound.copy(root)

    def is_a(self, kind: str) -> None:
        self.kinds.append(kind)

    # What there is -----------------------------------------------------------------------------------------------------

    @property
    def segments(self) -> list[list[Frame]]:
        """The frames of each file with frames, of the subject's largest log."""
        if not self.sound.frames:
            raise Unfit
        groups = [list(frames) for _, frames in groupby(self.sound.frames, lambda frame: frame.file)]
        folders = [Path(frames[0].file).parent for frames in groups]
        largest = max(folders, key=lambda folder: (folders.count(folder), str(folder)))
        return [frames for frames, folder in zip(groups, folders, strict=True) if folder == largest]

    @property
    def end(self) -> int:
        """The address after the last one."""
        return self.segments[-1][-1].last + 1

    def frame(self, where: str) -> Frame:
        """A frame: `first` of the log, `middle`, `segment-end` (another file follows), `log-end`, `last-middle` (in the last file)."""
        segments = self.segments
        middle = segments[len(segments) // 2] if len(segments) > 2 else segments[0]
        picked = {
            "first": segments[0][0],
            "middle": middle[len(middle) // 2] if len(middle) > 2 else middle[0],
            "segment-end": middle[-1],
            "log-end": segments[-1][-1],
            "last-middle": segments[-1][len(segments[-1]) // 2],
        }[where]
        if where == "segment-end" and len(segments) == 1:
            raise Unfit
        return picked

    def file(self, where: str) -> str:
        """The name of the `first`, `middle` or `last` file with frames."""
        names = [frames[0].file for frames in self.segments]
        if len(names) < (3 if where == "middle" else 2):
            raise Unfit
        return names[{"first": 0, "middle": len(names) // 2, "last": -1}[where]]

    def frames_of(self, *files: str) -> list[Frame]:
        return [frame for frame in self.sound.frames if frame.file in files]

    def touching(self, file: str, start: int, stop: int) -> list[Frame]:
        """The frames of a file that share a byte with a range."""
        return [frame for frame in self.frames_of(file) if frame.start < stop and start < frame.stop]

    # What is done to it ------------------------------------------------------------------------------------------------

    def read(self, file: str) -> bytes:
        return (self.root / file).read_bytes()

    def write(self, file: str, data: bytes) -> None:
        (self.root / file).write_bytes(data)

    def patch(self, file: str, at: int, data: bytes) -> None:
        whole = self.read(file)
        self.write(file, whole[:at] + data + whole[at + len(data) :])

    def flip(self, file: str, at: int, bit: int = 0) -> None:
        self.patch(file, at, bytes([self.read(file)[at] ^ 1 << bit]))

    def cut_out(self, file: str, start: int, stop: int) -> None:
        data = self.read(file)
        self.write(file, data[:start] + data[stop:])

    def insert(self, file: str, at: int, data: bytes) -> None:
        whole = self.read(file)
        self.write(file, whole[:at] + data + whole[at:])

    def derived_of(self, file: str) -> list[Path]:
        """The files that are derived from one file with frames."""
        path = self.root / file
        if self.subject.family.name == AMBRY:
            return sorted(path.parent.glob(path.name.removesuffix("log") + "[0-9]*"))
        return [] if self.subject.family.name != KAFKA else sorted(set(path.parent.glob(path.stem + ".*")) - {path})

    def delete(self, file: str, with_derived: bool = False) -> None:
        for path in self.derived_of(file) if with_derived else []:
            path.unlink()
        (self.root / file).unlink()

    def noise(self, size: int) -> bytes:
        return self.random.randbytes(size)

    def unmark(self) -> None:
        """Remove the mark of a clean stop."""
        for name in (".kafka_cleanshutdown", "*/cleanshutdown"):
            for path in self.root.glob(name):
                path.unlink()


@dataclass(frozen=True)
class Wound:
    name: str
    act: Callable[[Copy], None]
    on: frozenset[str]
    needs: frozenset[str] = frozenset()
    without: frozenset[str] = frozenset()
    #: Another wound of the same kind is enough for subjects that are much like others.
    is_variant: bool = False

    def fits(self, subject: Subject) -> bool:
        fits = subject.family.name in self.on and self.needs <= subject.facts and not self.without & subject.facts
        return fits and (bool(self.needs & WIDE) or not WIDE & subject.facts)


#: Subjects with these facts get only wounds that ask for them: they are large.
WIDE = frozenset({"whole", "settings", "topics"})
WOUNDS: dict[str, Wound] = {}


def wound(
    *values: object, on: Iterable[str] = (KAFKA,), needs: str = "", without: str = ""
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a wound, one for each value if there are values. `needs` and `without` name facts of subjects."""

    def register(act: Callable[..., None]) -> Callable[..., None]:
        name = act.__name__.replace("_", "-")
        for number, value in enumerate(values or (None,)):
            full = name if value is None else f"{name}-{value}"
            run = act if value is None else partial(act, value=value)
            facts = frozenset(needs.split()), frozenset(without.split())
            WOUNDS[full] = Wound(
                full, run, frozenset(on), *facts, number > 0 and value not in ("with-derived", "noise")
            )
        return act

    return register


def wounded(sound: Sound, wound: Wound, root: Path, seed: int = 0) -> Copy:
    """A wounded copy of a subject. Raises Unfit."""
    copy = Copy(sound, root, seed)
    wound.act(copy)
    return copy


LOGS = (KAFKA, ROCKETMQ, AMBRY)
ALL = (*LOGS, REPLAY)
BOTH = (KAFKA, KRAFT)


@wound(on=(*ALL, KRAFT))
def none(copy: Copy) -> None:
    copy.is_a("healthy")


@wound(on=(KAFKA,), needs="whole")
def none_whole(copy: Copy) -> None:
    copy.is_a("healthy")


@wound(on=(ROCKETMQ,), needs="settings")
def none_settings(copy: Copy) -> None:
    copy.is_a("healthy")


# Fields that no checksum covers ------------------------------------------------------------------------------------------


def _shift(copy: Copy, frame: Frame, by: int) -> None:
    """Add to the offset that a batch or message begins with."""
    stored = struct.unpack_from(">q", copy.read(frame.file), frame.start)[0]
    copy.patch(frame.file, frame.start, struct.pack(">q", stored + by))
    copy.patched.append(frame)


@wound(1, 2, 8, on=BOTH, without="compacted")
def base_offset_high(copy: Copy, value: int) -> None:
    _shift(copy, copy.frame("middle"), value)
    copy.is_a("offset")


@wound(1, 8, on=BOTH, without="compacted")
def base_offset_low(copy: Copy, value: int) -> None:
    frame = copy.frame("middle")
    _shift(copy, frame, -value)
    copy.is_a("offset")


@wound(on=BOTH, without="compacted")
def base_offset_largest(copy: Copy) -> None:
    """The offsets after it are too large for their type: they were taken to rise, and `diff` did not end; later repair took the batch to
    cover fewer offsets than it has, and dropped it, although the batches around it leave exactly one place.
    """
    frame = copy.frame("middle")
    copy.patch(frame.file, frame.start, struct.pack(">q", (1 << 63) - 1))
    copy.patched.append(frame)
    copy.is_a("offset")


@wound(on=BOTH)
def base_offset_minus_one(copy: Copy) -> None:
    frame = copy.frame("middle")
    copy.patch(frame.file, frame.start, struct.pack(">q", -1))
    copy.patched.append(frame)
    copy.is_a("offset")
    if copy.subject.has("compacted"):
        copy.maybe.append(frame)


@wound(2, "far", on=BOTH, without="compacted")
def base_offset_high_segment_end(copy: Copy, value: int | str) -> None:
    """The next segment's name leaves one place."""
    _shift(copy, copy.frame("segment-end"), value if isinstance(value, int) else 1 << 40)
    copy.is_a("offset")


@wound(1, 2, 8, on=BOTH, without="compacted")
def base_offset_high_log_end(copy: Copy, value: int) -> None:
    """Nothing follows; checkpoints, snapshots and indexes contradict it."""
    _shift(copy, copy.frame("log-end"), value)
    copy.is_a("offset-at-the-end")


@wound(on=BOTH, without="compacted")
def base_offset_low_log_end(copy: Copy) -> None:
    _shift(copy, copy.frame("log-end"), -1)
    copy.is_a("offset")


@wound(1, 100, on=BOTH, without="legacy")
def leader_epoch(copy: Copy, value: int) -> None:
    frame = copy.frame("middle")
    stored = struct.unpack_from(">i", copy.read(frame.file), frame.start + 12)[0]
    copy.patch(frame.file, frame.start + 12, struct.pack(">i", stored + value))
    copy.is_a("field")


@wound("physical-offset-bit", "physical-offset-zero", on=(ROCKETMQ,))
def field_of_message(copy: Copy, value: str) -> None:
    frame = copy.frame("middle")
    if value.endswith("bit"):
        copy.flip(frame.file, frame.start + 35, 5)
    else:
        copy.patch(frame.file, frame.start + 28, bytes(8))
    copy.patched.append(frame)
    copy.is_a("offset")


@wound("queue-offset", "queue-id", on=(ROCKETMQ,))
def queue_field_of_message(copy: Copy, value: str) -> None:
    """The checksum among its properties covers it; the consume queues say what it was."""
    frame = copy.frame("middle")
    copy.flip(frame.file, frame.start + {"queue-offset": 27, "queue-id": 15}[value], 1)
    copy.patched.append(frame)
    copy.maybe.append(frame)
    copy.is_a("damaged")


@wound(on=(AMBRY,))
def segment_header(copy: Copy) -> None:
    """The header of a log segment has a checksum of its own and nothing that cannot be known."""
    copy.flip(copy.file("middle"), 5)
    copy.is_a("file-header")


@wound(on=(AMBRY,))
def message_header(copy: Copy) -> None:
    frame = copy.frame("middle")
    copy.flip(frame.file, frame.start + 6)
    copy.maybe.append(frame)
    copy.is_a("damaged")


@wound(on=(AMBRY,))
def blob_id(copy: Copy) -> None:
    """No checksum covers the blob id; the index has it too."""
    frame = copy.frame("middle")
    key = copy.read(frame.file).index(b"\x00\x06", frame.start + 20)
    copy.flip(frame.file, key + 35)
    copy.maybe.append(frame)
    copy.patched.append(frame)
    copy.is_a("offset")


# Damaged frames ----------------------------------------------------------------------------------------------------------


@wound("long", "very-long", "short", on=(*BOTH, ROCKETMQ))
def length(copy: Copy, value: str) -> None:
    """The length of a batch or message: too long or too short."""
    frame = copy.frame("middle")
    at = frame.start + (8 if copy.subject.family.name in BOTH else 0)
    stored = struct.unpack_from(">i", copy.read(frame.file), at)[0]
    copy.patch(frame.file, at, struct.pack(">i", max(stored + {"long": 3, "very-long": 10_000, "short": -3}[value], 1)))
    copy.maybe.append(frame)
    copy.is_a("damaged")


@wound(on=(REPLAY,))
def length_of_entry(copy: Copy) -> None:
    """A length that no entry can have: nothing tells where the next entry begins."""
    version = int(copy.subject.name[-1])
    frame = copy.frame("middle")
    copy.patch(frame.file, frame.start + {0: 27, 1: 8, 2: 16}[version], struct.pack(">q", 1 << 40))
    copy.maybe += [other for other in copy.frames_of(frame.file) if other.start >= frame.start]
    copy.is_a("damaged")


@wound("middle", "segment-end", "log-end", "first", on=(*LOGS, KRAFT))
def bit(copy: Copy, value: str) -> None:
    """A bit that a checksum covers."""
    frame = copy.frame(value)
    at = {ROCKETMQ: 88, AMBRY: frame.size - 12}.get(copy.subject.family.name, frame.size - 2)
    copy.flip(frame.file, frame.start + at)
    copy.lost.append(frame)
    copy.is_a("checksum")


@wound(on=(*LOGS, KRAFT))
def bytes_missing(copy: Copy) -> None:
    frame = copy.frame("middle")
    middle = frame.start + frame.size // 2
    copy.cut_out(frame.file, middle, middle + 5)
    copy.lost.append(frame)
    copy.is_a("damaged")


@wound(on=(*LOGS, KRAFT))
def garbage_inserted(copy: Copy) -> None:
    """Between two frames: nothing is destroyed."""
    frame = copy.frame("middle")
    copy.insert(frame.file, frame.start, copy.noise(500))
    copy.is_a("garbage")


@wound(on=(*LOGS, KRAFT))
def garbage_inside(copy: Copy) -> None:
    frame = copy.frame("middle")
    copy.insert(frame.file, frame.start + frame.size // 2, copy.noise(100))
    copy.lost.append(frame)
    copy.is_a("damaged")


@wound(64, 512, on=(*LOGS, KRAFT))
def zeroed(copy: Copy, value: int) -> None:
    frame = copy.frame("middle")
    start = frame.start + frame.size // 2
    stop = min(start + value, copy.frames_of(frame.file)[-1].stop)
    copy.patch(frame.file, start, bytes(stop - start))
    touched = copy.touching(frame.file, start, stop)
    copy.lost += touched
    copy.is_a("checksum" if touched == [frame] else "damaged")


@wound(on=(*LOGS, KRAFT))
def start_zeroed(copy: Copy) -> None:
    """The first 4 KiB of the first file, as a filesystem leaves them."""
    file = copy.segments[0][0].file
    copy.patch(file, 0, bytes(min(4096, len(copy.read(file)))))
    copy.lost += copy.touching(file, 0, 4096)
    copy.is_a("damaged")


# Holes -------------------------------------------------------------------------------------------------------------------


def _hole(copy: Copy, frames: list[Frame], is_known: bool) -> None:
    """Frames are gone in the middle; `is_known`: an orphan or an entry of an index names them."""
    copy.lost += frames
    if is_known or {"policy", "sequences"} & copy.subject.facts or copy.subject.family.name in (KRAFT, ROCKETMQ):
        copy.is_a("hole")
    elif copy.subject.family.name == AMBRY:
        copy.is_a("hole-in-blobs")
    else:
        copy.is_a("hole-compacted" if copy.subject.has("compacted") else "hole-unknown")
        copy.has_evidence = False


def _index_entries(copy: Copy, file: str) -> set[int]:
    """The offsets that the index of a segment names."""
    index = (copy.root / file).with_suffix(".index")
    data, base = index.read_bytes() if index.exists() else b"", int(index.stem)
    return {base + struct.unpack_from(">i", data, at)[0] for at in range(0, len(data) - 7, 8)}


def _is_indexed(copy: Copy, frame: Frame) -> bool:
    return any(frame.first <= entry <= frame.last for entry in _index_entries(copy, frame.file))


def _indexed(copy: Copy) -> Frame:
    """A frame in the middle whose offset the index of its segment names. Raises Unfit."""
    for frames in copy.segments[1:-1] or copy.segments[:1]:
        for frame in frames[1:-1]:
            if _is_indexed(copy, frame):
                return frame
    raise Unfit


def _after_a_repeated_key(copy: Copy) -> Frame:
    """A frame of data inside of a segment after a key that is twice in numbered batches of several records: compaction would have removed
    the first. Raises Unfit.
    """
    keys: set[bytes | None] = set()
    is_repeated = False
    for frames in copy.segments:
        for number, batch in enumerate(kafka_reference.decode(copy.read(frames[0].file))):
            if is_repeated and not batch.is_control and 0 < number < len(frames) - 1:
                return frames[number]
            if batch.producer_id >= 0 and not batch.is_control and len(batch.records) > 1:
                for record in batch.records:
                    is_repeated |= record.key in keys
                    keys.add(record.key)
    raise Unfit


@wound(on=(*LOGS, KRAFT), without="compacted")
def frame_missing(copy: Copy) -> None:
    """One batch, message or blob is cut out, nothing else is touched."""
    if copy.subject.family.name != KAFKA or copy.subject.has("policy"):
        frame = copy.frame("middle")
    else:
        frame = _after_a_repeated_key(copy) if copy.subject.has("sequences") else _indexed(copy)
    copy.cut_out(frame.file, frame.start, frame.stop)
    _hole(copy, [frame], is_known=copy.subject.family.name == KAFKA)


@wound(on=(KAFKA,), without="policy sequences")
def frame_missing_without_indexes(copy: Copy) -> None:
    """Nothing tells it from compaction."""
    frame = copy.segments[0][1]
    for path in copy.derived_of(frame.file):
        path.unlink()
    copy.cut_out(frame.file, frame.start, frame.stop)
    _hole(copy, [frame], is_known=False)


@wound(on=(REPLAY,))
def entry_missing(copy: Copy) -> None:
    """Entries have no numbers: nobody can know."""
    frame = copy.frame("middle")
    copy.cut_out(frame.file, frame.start, frame.stop)
    copy.lost.append(frame)
    copy.has_evidence = False
    copy.is_a("invisible")


@wound("between", "inside", on=(*LOGS, KRAFT), without="compacted")
def middle_cut(copy: Copy, value: str) -> None:
    """A file that another one follows ends too early."""
    frames = copy.frames_of(copy.file("middle"))
    frame = frames[len(frames) // 2]
    stop = frame.start + (frame.size // 2 if value == "inside" else 0)
    copy.write(frame.file, copy.read(frame.file)[:stop])
    lost = [other for other in frames if other.start >= frame.start]
    if value == "inside":
        copy.lost += lost
        copy.is_a("damaged")
    else:
        is_known = copy.subject.family.name == KAFKA and any(_is_indexed(copy, frame) for frame in lost)
        _hole(copy, lost, is_known=is_known)


@wound("alone", "with-derived", on=(*LOGS, KRAFT))
def middle_file_missing(copy: Copy, value: str) -> None:
    file = copy.file("middle")
    _hole(copy, copy.frames_of(file), is_known=value == "alone" and copy.subject.family.name != KRAFT)
    copy.delete(file, with_derived=value == "with-derived")


@wound(on=(*LOGS, KRAFT))
def middle_file_empty(copy: Copy) -> None:
    file = copy.file("middle")
    copy.write(file, b"")
    _hole(copy, copy.frames_of(file), is_known=True)


@wound("alone", "with-derived", on=LOGS)
def first_file_missing(copy: Copy, value: str) -> None:
    file = copy.file("first")
    copy.lost += copy.frames_of(file)
    epochs = (copy.root / file).parent / "leader-epoch-checkpoint"
    copy.delete(file, with_derived=value == "with-derived")
    if copy.subject.family.name != KAFKA:
        copy.is_a("beginning-unclear")
        copy.has_evidence = False
    elif value == "alone" or (epochs.exists() and not copy.subject.has("legacy")):
        copy.is_a("beginning")
    else:
        copy.is_a("expired")
        copy.has_evidence = False


@wound(on=(KAFKA,), without="compacted legacy transactions")
def first_file_expired(copy: Copy) -> None:
    """What retention leaves: the log begins later, and the epoch checkpoint says so."""
    file = copy.file("first")
    copy.lost += copy.frames_of(file)
    copy.delete(file, with_derived=True)
    start = copy.segments[1][0].first
    path = (copy.root / file).parent / "leader-epoch-checkpoint"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], f"{lines[2].split()[0]} {start}", *lines[3:], ""]))
    copy.is_a("expired")
    copy.has_evidence = False


@wound("alone", "with-derived", on=(*LOGS, KRAFT))
def last_file_missing(copy: Copy, value: str) -> None:
    file = copy.file("last")
    copy.lost += copy.frames_of(file)
    copy.delete(file, with_derived=value == "with-derived")
    if copy.subject.family.name == AMBRY and value == "with-derived":
        copy.is_a("invisible")
        copy.has_evidence = False
    else:
        copy.is_a("end-lost")


@wound(on=(*LOGS, KRAFT))
def last_file_empty(copy: Copy) -> None:
    file = copy.file("last")
    copy.lost += copy.frames_of(file)
    copy.write(file, b"")
    copy.is_a("end-lost")


# Ends --------------------------------------------------------------------------------------------------------------------


@wound("between", "inside", on=(*LOGS, KRAFT))
def end_cut(copy: Copy, value: str) -> None:
    """The log ends earlier than checkpoints, snapshots, queues or indexes say."""
    frame = copy.frame("log-end")
    stop = frame.start + (frame.size // 2 if value == "inside" else 0)
    copy.write(frame.file, copy.read(frame.file)[:stop])
    copy.lost.append(frame)
    copy.is_a("end-lost")


@wound("between", "inside", on=(REPLAY,))
def recording_cut(copy: Copy, value: str) -> None:
    frame = copy.frame("log-end")
    stop = frame.start + (frame.size // 2 if value == "inside" else 0)
    copy.write(frame.file, copy.read(frame.file)[:stop])
    copy.lost.append(frame)
    copy.has_evidence = False
    copy.is_a("tail")


def _tail(copy: Copy, data: bytes) -> None:
    frame = copy.frame("log-end")
    if copy.subject.family.name == ROCKETMQ:
        copy.patch(frame.file, frame.stop, data)
    else:
        copy.insert(frame.file, frame.stop, data)


@wound("unfinished", "zeros", "noise", on=(*ALL, KRAFT))
def tail(copy: Copy, value: str) -> None:
    """What a crash leaves after the end; nothing confirms that it was a record."""
    frame = copy.frame("log-end")
    data = copy.read(frame.file)[frame.start : frame.start + frame.size // 2]
    if copy.subject.family.name in (KAFKA, KRAFT):
        data = struct.pack(">q", copy.end) + data[8:]
    if copy.subject.family.name == ROCKETMQ and value == "zeros":
        raise Unfit
    if copy.subject.family.name == REPLAY and value != "unfinished":  # the real tool reads zeros as entries
        raise Unfit
    room = 400 if copy.subject.family.name == AMBRY else 4096  # a segment of Ambry is not longer than its capacity
    _tail(copy, {"unfinished": data, "zeros": bytes(room), "noise": copy.noise(min(room, 500))}[value])
    copy.unmark()
    is_refused = copy.subject.family.name == AMBRY and value != "unfinished"  # Ambry does not start on it
    copy.is_a("tail-refused" if is_refused else "tail")


@wound("unfinished", "zeros", "noise", needs="clean")
def tail_after_clean_stop(copy: Copy, value: str) -> None:
    """The same where the mark of a clean stop says that there is no such tail: a broker refuses to start."""
    frame = copy.frame("log-end")
    data = struct.pack(">q", copy.end) + copy.read(frame.file)[frame.start + 8 : frame.start + frame.size // 2]
    _tail(copy, {"unfinished": data, "zeros": bytes(4096), "noise": copy.noise(500)}[value])
    copy.is_a("tail-refused")


# Whole files at a wrong place ---------------------------------------------------------------------------------------------


def _after_the_end(copy: Copy) -> str:
    """The name that the file after the last one would have."""
    path = Path(copy.segments[-1][-1].file)
    if copy.subject.family.name in BOTH:
        return str(path.with_name(f"{copy.end:020}.log"))
    if copy.subject.family.name == ROCKETMQ:
        return str(path.with_name(f"{int(path.name) + len(copy.read(str(path))):020}"))
    return str(path.with_name(f"{int(path.name.split('_')[0]) + 1}_0_log"))


def _foreign(copy: Copy) -> bytes:
    """A file of another store of the same system, with addresses from its own beginning."""
    if copy.subject.family.name == AMBRY:  # of partition 42
        return (GOLDEN / "ambry" / "store-ops" / "0_0_log").read_bytes()
    if copy.subject.family.name == ROCKETMQ:  # of another broker
        size = len(copy.read(copy.segments[0][0].file))
        return (GOLDEN / "rocketmq" / "broker-5.3.3" / "store" / "commitlog" / ("0" * 20)).read_bytes()[:size]
    batches = [
        kafka_reference.encode_batch(
            b"".join(kafka_reference.encode_record(n, n, b"foreign", b"foreign %d" % (3 * number + n)) for n in range(3)),
            record_count=3, base_offset=3 * number, base_timestamp=1793500000000, max_timestamp=1793500000002,
        )
        for number in range(4)
    ]  # fmt: skip
    return b"".join(batches)


def _foreign_metadata(copy: Copy) -> bytes:
    """A segment of another cluster's metadata log, of the offsets that come next here."""
    log = GOLDEN / "kafka" / "broker-3.9.2" / "data" / "__cluster_metadata-0" / f"{0:020}.log"
    data = bytearray(log.read_bytes())
    for batch in kafka_reference.decode(bytes(data)):
        struct.pack_into(">q", data, batch.position, (batch.base_offset or 0) + copy.end)
    return bytes(data)


@wound(on=LOGS)
def duplicate_added(copy: Copy) -> None:
    """A copy of the first file after the end."""
    target = _after_the_end(copy)
    copy.write(target, copy.read(copy.segments[0][0].file))
    copy.is_a("foreign")


@wound(on=LOGS)
def duplicate_instead(copy: Copy) -> None:
    """A copy of the first file instead of a later one."""
    file = copy.file("middle")
    copy.write(file, copy.read(copy.segments[0][0].file))
    copy.lost += copy.frames_of(file)
    copy.is_a("foreign")
    copy.is_a("hole")


@wound("added", "instead", on=LOGS, without="legacy")
def foreign(copy: Copy, value: str) -> None:
    """A segment of another partition, whose offsets are not those of its name."""
    if value == "instead":
        file = copy.file("middle")
        copy.lost += copy.frames_of(file)
        copy.is_a("hole")
    else:
        file = _after_the_end(copy)
    copy.write(file, _foreign(copy))
    copy.is_a("foreign")


@wound(on=(KRAFT,))
def foreign_metadata(copy: Copy) -> None:
    """A segment of another cluster after the end: its topic ids, epochs and brokers contradict the log before it."""
    copy.write(_after_the_end(copy), _foreign_metadata(copy))
    copy.is_a("foreign")


@wound(on=(KRAFT,), needs="topics")
def foreign_topics(copy: Copy) -> None:
    """The same of a whole controller."""
    foreign_metadata(copy)
    copy.is_a("controller-alone")


@wound(on=(KRAFT,), needs="topics")
def none_topics(copy: Copy) -> None:
    """No wound; but the partitions that the metadata names are not here, and a new cluster has them empty."""
    copy.is_a("controller-alone")


def _renamed(copy: Copy, *names: tuple[str, str]) -> None:
    """Rename files with what is derived from them, all at once."""
    moves = []
    for old, new in names:
        stem, target = Path(old).stem, Path(new).stem
        for path in [copy.root / old, *(copy.derived_of(old))]:
            moves.append((path, path.with_name(path.name.replace(stem, target, 1)), path.read_bytes()))
    for path, _, _ in moves:
        path.unlink()
    for _, path, data in moves:
        path.write_bytes(data)


@wound(on=(KAFKA, ROCKETMQ))
def renamed(copy: Copy) -> None:
    """A file, and what is derived from it, under a name that is not where it begins."""
    if copy.subject.has("compacted"):  # a cleaned segment may begin after its name
        raise Unfit
    old = Path(copy.file("middle"))
    number = int(old.stem) + (1 if copy.subject.family.name == KAFKA else 128)
    _renamed(copy, (str(old), str(old.with_name(f"{number:020}{old.suffix}"))))
    copy.is_a("moved")


@wound("first-last", "middle-last", on=(KAFKA, ROCKETMQ))
def swapped(copy: Copy, value: str) -> None:
    """Two files with each other's names."""
    first, second = (copy.file(where) for where in value.split("-"))
    if first == second:
        raise Unfit
    _renamed(copy, (first, second), (second, first))
    copy.is_a("moved")


@wound("first", "middle", on=(KAFKA,))
def exchanged(copy: Copy, value: str) -> None:
    """Two neighbouring frames in each other's place: `erase` took the first one in the file for the first one of the log."""
    frame = copy.frame(value)
    frames = copy.frames_of(frame.file)
    at = max(frames.index(frame), 1)
    if len(frames) < 2:
        raise Unfit
    before, after = frames[at - 1 : at + 1]
    data = copy.read(frame.file)
    first, second = data[before.start : before.stop], data[after.start : after.stop]
    copy.patch(frame.file, before.start, second + first)
    copy.is_a("moved")


# Files that are not the log ----------------------------------------------------------------------------------------------


@wound(on=LOGS)
def derived_gone(copy: Copy) -> None:
    for path in copy.subject.family.files(copy.root, copy.subject.family.derived):
        path.unlink()
    copy.is_a("derived-gone")


@wound(on=LOGS)
def derived_garbage(copy: Copy) -> None:
    """Every file that is derived from the log has random bytes; those that were empty stay so."""
    for path in copy.subject.family.files(copy.root, copy.subject.family.derived):
        path.write_bytes(copy.noise(path.stat().st_size))
    copy.is_a("derived-wrong")


@wound(needs="identity", without="whole")
def meta_properties_gone(copy: Copy) -> None:
    (copy.root / "meta.properties").unlink()
    copy.is_a("identity")


@wound(
    "recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint", "cleaner-offset-checkpoint",
    "bootstrap.checkpoint", ".kafka_cleanshutdown", needs="identity", without="whole",
)  # fmt: skip
def remade_gone(copy: Copy, value: str) -> None:
    """Files that a broker makes again by itself."""
    (copy.root / value).unlink()
    copy.is_a("remade")


@wound("StoreDescriptor", "cleanshutdown", "remoteTokenTracker", on=(AMBRY,))
def ambry_file_gone(copy: Copy, value: str) -> None:
    next(copy.root.glob(f"*/{value}")).unlink()
    copy.is_a("remade")


@wound("checkpoint", "lock", on=(ROCKETMQ,))
def rocketmq_file_gone(copy: Copy, value: str) -> None:
    (copy.root / value).unlink()
    copy.is_a("remade")


@wound(needs="identity", without="whole")
def topic_id_gone(copy: Copy) -> None:
    """`partition.metadata`: a node with a metadata log does not start without it."""
    (copy.root / "orders-0" / "partition.metadata").unlink()
    copy.is_a("identity")


@wound(needs="identity", without="whole")
def metadata_log_gone(copy: Copy) -> None:
    """One directory cannot tell whether `metadata.log.dir` is elsewhere."""
    shutil.rmtree(copy.root / "__cluster_metadata-0")
    copy.is_a("metadata-elsewhere")


@wound("sea.orders-1", needs="whole")
def partition_gone(copy: Copy, value: str) -> None:
    copy.lost += [frame for frame in copy.sound.frames if frame.place == value]
    shutil.rmtree(copy.root / value)
    copy.is_a("directory")


@wound(needs="whole")
def topic_gone(copy: Copy) -> None:
    for path in copy.root.glob("sea.orders-*"):
        copy.lost += [frame for frame in copy.sound.frames if frame.place == path.name]
        shutil.rmtree(path)
    copy.is_a("directory")


@wound(needs="whole")
def empty_partition_gone(copy: Copy) -> None:
    """A partition that never had a record: its directory is expected all the same."""
    shutil.rmtree(copy.root / "sea.empty-0")
    copy.is_a("empty-directory")


@wound(needs="whole")
def node_of_another(copy: Copy) -> None:
    """`meta.properties` names a node for which the metadata has not registered this directory."""
    meta = copy.root / "meta.properties"
    meta.write_text(re.sub(r"node\.id=\d+", "node.id=77", meta.read_text()))
    copy.is_a("identity-of-another")


@wound("gone", "empty", needs="whole")
def partition_and_checkpoints_gone(copy: Copy, value: str) -> None:
    """Only the cluster's metadata still names the partition; nothing tells which offsets it had."""
    copy.maybe += [frame for frame in copy.sound.frames if frame.place == "sea.orders-1"]
    shutil.rmtree(copy.root / "sea.orders-1")
    for path in copy.root.glob("*-offset-checkpoint"):
        path.unlink() if value == "gone" else path.write_bytes(b"")
    copy.is_a("empty-directory")


@wound(needs="whole")
def bit_in_one_partition(copy: Copy) -> None:
    frames = [frame for frame in copy.sound.frames if frame.place == "sea.orders-2"]
    frame = frames[len(frames) // 2]
    copy.flip(frame.file, frame.stop - 2)
    copy.lost.append(frame)
    copy.is_a("checksum")


@wound("gone", "garbage", on=(ROCKETMQ,), needs="settings")
def topics_json(copy: Copy, value: str) -> None:
    """The settings of topics and their copy."""
    for path in copy.root.glob("config/topics.json*"):
        path.unlink() if value == "gone" else path.write_bytes(copy.noise(300))
    copy.is_a("settings")


@wound(on=(ROCKETMQ,), needs="settings")
def unknown_database(copy: Copy) -> None:
    """Databases and files that rawlog does not read are carried or named."""
    for name in ("kvStore", "rocksdbstore", "config/metadata"):
        (copy.root / name).mkdir(parents=True)
        (copy.root / name / "CURRENT").write_text("MANIFEST-000001\n")
    copy.is_a("unknown-files")


# At random ----------------------------------------------------------------------------------------------------------------


def at_random(copy: Copy) -> None:
    """One to four frames anywhere are flipped, zeroed, cut out in part or have bytes inserted: `copy.random` says which."""
    frames = copy.random.sample([frame for frame in copy.sound.frames if frame.size > 60], copy.random.randint(1, 4))
    for frame in sorted(frames, key=lambda frame: (frame.file, -frame.start)):  # from the end: positions before it stay
        inside = frame.start + frame.size - copy.random.randint(2, 20)
        how = copy.random.choice(("flip", "zero", "cut", "insert"))
        data = copy.read(frame.file)
        if how == "cut" and data[inside : frame.stop] == data[inside + 1 : frame.stop + 1]:
            how = "flip"  # zeros end the frame and begin the next one: without a byte it is still whole
        if how == "flip" or copy.subject.family.name == ROCKETMQ:
            copy.flip(
                frame.file,
                frame.start + 88 if copy.subject.family.name == ROCKETMQ else inside,
                copy.random.randint(0, 7),
            )
        elif how == "zero":
            copy.patch(frame.file, frame.start + 30, bytes(frame.size - 30))
        elif how == "cut":
            copy.cut_out(frame.file, inside, inside + 1)
        else:
            copy.insert(frame.file, inside, copy.noise(copy.random.randint(1, 40)))
        copy.lost.append(frame)
    copy.is_a("damaged")


RANDOM = Wound("at-random", at_random, frozenset((*LOGS, KRAFT)))


# Two at once -------------------------------------------------------------------------------------------------------------


def _both(copy: Copy, *names: str) -> None:
    for name in names:
        WOUNDS[name].act(copy)


PAIRS = [
    ("bit-first", "end-cut-inside"),
    ("bit-log-end", "middle-file-missing-alone"),
    ("derived-gone", "bit-middle"),
    ("derived-garbage", "end-cut-between"),
    ("bit-first", "bit-log-end"),
]
for _pair in PAIRS:
    _on = frozenset.intersection(*(WOUNDS[name].on for name in _pair)) - (
        {AMBRY} if "derived-garbage" in _pair else set()
    )
    _name = "--".join(_pair)
    WOUNDS[_name] = Wound(_name, lambda copy, names=_pair: _both(copy, *names), _on)
