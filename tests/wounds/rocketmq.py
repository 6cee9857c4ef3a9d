"""RocketMQ: a store with three commit-log files, queues, key index; and one of a real broker with its settings."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.data.golden import GOLDEN
from tests.reference import codecs, rocketmq
from tests.wounds.truth import Family, Frame, Record, Subject, digest

#: The flag of messages that repair writes over a hole: queues have no place for a gap.
PLACEHOLDER = int.from_bytes(b"rawl", "big")
COMPRESSED, INNER_BATCH, LZ4, ZSTD = 0x1, 0x80, 1, 2


class RocketMQ(Family):
    name = "rocketmq"
    data = ("**/commitlog/*",)
    derived = ("**/consumequeue/*/*/*", "**/batchconsumequeue/*/*/*", "**/consumequeue_ext/*/*/*", "**/index/*")

    def frames(self, root: Path, file: Path) -> list[Frame]:
        found = []
        name = str(file.relative_to(root))
        try:
            for message in rocketmq.messages(file.read_bytes()):
                place = f"{message.topic.decode()}-{message.queue_id}"
                start, stop = message.position, message.position + message.size
                records = self.of_message(place, message) if message.crc_ok and message.flag != PLACEHOLDER else ()
                found.append(Frame(name, start, stop, "", message.physical_offset, message.physical_offset, records))
        except rocketmq.Bad:
            pass
        return found

    def of_message(self, place: str, message: rocketmq.Message) -> tuple[Record, ...]:
        """Its record, or those of an inner batch."""
        try:
            body = decompressed(message)
            if not message.sys_flag & INNER_BATCH:
                return (Record(place, message.queue_offset, digest(message.born, message.shown.get(b"KEYS"), body)),)
            found = []
            for number, (_, inner, properties) in enumerate(rocketmq.inner(body)):
                pieces = dict(piece.partition(b"\1")[::2] for piece in properties.split(b"\2") if piece)
                found.append(
                    Record(place, message.queue_offset + number, digest(message.born, pieces.get(b"KEYS"), inner))
                )
            return tuple(found)
        except (ValueError, zlib.error, codecs.CodecError):
            return (Record(place, message.queue_offset, "unreadable"),)

    def row(self, row: Mapping[str, Any]) -> Record:
        place = f"{row['topic']}-{row['partition']}"
        return Record(place, row["offset"], digest(row["timestamp"], row["key"], row["value"]))


def decompressed(message: rocketmq.Message) -> bytes:
    if not message.sys_flag & COMPRESSED:
        return message.body
    codec = {LZ4: 3, ZSTD: 4}.get(message.sys_flag >> 8 & 7)
    return zlib.decompress(message.body) if codec is None else codecs.decompress(codec, message.body, 2)


FAMILY = RocketMQ()


def golden(name: str) -> Callable[[Path], None]:
    def build(root: Path) -> None:
        shutil.copytree(GOLDEN / "rocketmq" / name / "store", root, dirs_exist_ok=True)

    return build


SUBJECTS = [
    Subject("rocketmq-store", FAMILY, golden("5.3.4S-propcrc"), frozenset({"clean"}), key="k1"),
]
#: A real broker's store with its settings: for what happens to files that are not the log.
BROKER = [Subject("rocketmq-broker", FAMILY, golden("broker-4.9.7"), frozenset({"clean", "settings"}), key="no-such")]
