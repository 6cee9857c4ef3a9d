"""A partition directory that grows in place, as a broker's own does, and can be continued after any end of the process.

At every moment its files are what a broker that was killed leaves: whole segments with their indexes and snapshots, and a last segment
that may end inside a batch. To continue, that tail is cut off and what the last segment tells is derived again.
"""

from __future__ import annotations

import base64
import contextlib
import os
from pathlib import Path

from rawlog.core.errors import AccessError, DataError, OptionError, RawlogError
from rawlog.core.format import File
from rawlog.core.frames import Frames
from rawlog.core.status import Status
from rawlog.formats.kafka.checkpoints import parse_epochs
from rawlog.formats.kafka.heads import Heads, heads
from rawlog.formats.kafka.layouts import MAGIC_V2, SNAPSHOT_ENTRY
from rawlog.formats.kafka.log import sound
from rawlog.formats.kafka.paths import segment_file
from rawlog.formats.kafka.store.derived import Derivation, Limits, SegmentIndex
from rawlog.formats.kafka.store.partition_writer import EPOCHS, METADATA, PartitionWriter, metadata_file, segment_name
from rawlog.formats.kafka.store.state import Producer, Producers
from rawlog.formats.kafka.texts import topic_id as read_topic_id
from rawlog.io.output import Folder
from rawlog.io.storage import read_regular
from rawlog.io.walk import walk

DERIVED = ("index", "timeindex", "txnindex")


class GrowingPartition(PartitionWriter):
    """A PartitionWriter whose directory may have content already, which it continues. `start` names the first segment of an empty one.

    OptionError if the directory belongs to another topic; DataError if it is damaged before its end.
    """

    def __init__(self, folder: Folder, limits: Limits, *, topic_id: bytes, start: int = 0) -> None:
        super().__init__(folder, limits, log_start=start)
        self.cut = 0
        """The bytes of an unfinished batch that were cut off."""
        names = sorted(os.listdir(folder.path))
        text = base64.urlsafe_b64encode(topic_id).decode().rstrip("=")
        if METADATA in names:
            self._check_id(topic_id)
        elif any(topic_id):
            folder.write(METADATA, metadata_file(text))
        segments = [name for name in names if name.endswith(".log") and segment_file("log")(name) is not None]
        if segments:
            self._continue(names, segments)

    def close(self) -> None:
        """As always. If there is no room for what is derived from the last segment, it is left out: whoever continues derives it again."""
        base = "" if self._index is None else segment_name(self._index.base, "")
        try:
            super().close()
        except OSError:
            for name in sorted(os.listdir(self.folder.path)):
                if base and name.startswith(base) and not name.endswith(".log"):
                    self.folder.remove(name)
            raise

    def abandon(self) -> None:
        """Let go of the open file, also if the end of it cannot be written any more."""
        with contextlib.suppress(OSError):
            super().abandon()
        self._file = None

    def append(self, frames: Frames, head: Heads) -> None:
        """As always; the epochs are written as soon as there are new ones, as a broker does."""
        known = len(self.derivation.epochs.rows)
        super().append(frames, head)
        if len(self.derivation.epochs.rows) > known or EPOCHS not in self.derived:
            self._write(EPOCHS, self.derivation.epochs_file())

    def _check_id(self, wanted: bytes) -> None:
        path = self.folder.path / METADATA
        try:
            found = read_topic_id(read_regular(path))
        except (OSError, ValueError) as error:
            raise AccessError(f"{path}: {error}") from None
        if any(wanted) and any(found) and found != wanted:
            raise OptionError(
                f"{self.folder.named}: it holds another topic of the same name, which was deleted since; record to another place"
            )

    def _continue(self, names: list[str], segments: list[str]) -> None:
        """Take in what is there: all but the last segment by its files, that one by its batches."""
        self.logs, base = list(segments), int(segments[-1].partition(".")[0])
        self.segments = len(segments)
        if not self._load_state(base, names):
            self.derivation = Derivation()
            for name in segments[:-1]:
                self._walk(name, None)
                self.derivation.end_segment()
        for name in names:
            stem, _, kind = name.partition(".")
            if (kind in DERIVED and stem == segment_name(base, "").rstrip(".")) or (
                kind == "snapshot" and int(stem) > base
            ):
                self.folder.remove(name)
            elif kind in (*DERIVED, "snapshot") or name == EPOCHS:
                self.derived[name] = None
        self._index = SegmentIndex(base, self._limits)
        self.end_offset = base
        whole = self._walk(segments[-1], self._index)
        self._has_v2 = self._has_v2 or len(segments) > 1
        size = (self.folder.path / segments[-1]).stat().st_size
        self._file = self.folder.change(segments[-1])
        self.cut = size - whole
        self._file.truncate(whole)
        self._file.seek(whole)

    def _load_state(self, base: int, names: list[str]) -> bool:
        """The producers and epochs where the last segment begins; False if its files do not say it."""
        snapshot = segment_name(base, "snapshot")
        if self.logs[0] == segment_name(base, "log"):
            return True  # the only segment: nothing comes before it
        if snapshot not in names or EPOCHS not in names:
            return False
        try:
            states = _producers_at(self.folder.path / snapshot)
            epochs = parse_epochs(read_regular(self.folder.path / EPOCHS))
        except (RawlogError, OSError):
            return False
        if epochs is None or states is None:
            return False
        self.derivation.producers = Producers.of(states)
        self.derivation.epochs.rows = [(epoch, start) for epoch, start in epochs if start < base]
        return True

    def _walk(self, name: str, index: SegmentIndex | None) -> int:
        """Take in the batches of a segment; where its last whole one ends."""
        from rawlog.formats.kafka import LOG

        path = self.folder.path / name
        file = File(str(path), path.stat().st_size, None, LOG.name)
        reached = 0
        for frames in walk(file, LOG, errors="stop" if index is not None else "raise"):
            head = heads(frames)
            good, error = sound(frames, head)
            if error is not None and index is None:
                raise error.at(path=str(path), format=LOG.name)
            frames, head = frames.slice(0, good), head.slice(0, good)
            if len(frames):
                if index is not None and index.add(frames.sizes, head) < len(frames):
                    raise DataError("a segment that holds more than its limits allow", path=str(path), format=LOG.name)
                self.derivation.add(frames, head)
                self._has_v2 |= bool((head["magic"] == MAGIC_V2).any())
                self.end_offset = int(head["last_offset"][-1]) + 1
                reached = frames.base + int(frames.stops[-1])
            if error is not None:
                break
        return reached


def _producers_at(path: Path) -> dict[int, Producer] | None:
    """The producers of a snapshot; None if it is cut."""
    from rawlog.formats.kafka import SNAPSHOT

    states: dict[int, Producer] = {}
    for frames in walk(File(str(path), path.stat().st_size, None, SNAPSHOT.name), SNAPSHOT, errors="raise"):
        if frames.status is not Status.OK:
            return None
        raw = SNAPSHOT_ENTRY.take(frames.data, frames.starts)
        states |= {number: Producer(*fields) for number, *fields in raw.tolist()}
    return states
