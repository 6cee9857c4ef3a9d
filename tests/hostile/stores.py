"""Stores that were made to harm whoever opens them: each is valid in its bytes, its content is the attack.

Texts that terminals, pages, spreadsheets and databases would run; names that lead out of a directory; passwords; counts and sizes far
beyond the bytes; compressed parts that grow without end; nesting without end; files that are links, pipes and devices.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import socket
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import zstandard

from rawlog.formats.ambry import keys
from rawlog.formats.ambry.store.rewrite import StoreWriter, Style
from rawlog.formats.ambry.writer import Properties, put_message
from rawlog.io.output import Folder
from tests.data.new_cluster import NewCluster
from tests.reference import kafka, rocketmq

SAMPLES = Path(__file__).parents[2] / "samples"
#: A directory next to the source: whatever appears there came through a name that leads out of the target.
OUTSIDE = "outside"
UP = f"../../../../../{OUTSIDE}"
#: What no program may print raw, in the order of its victims: terminal, page, spreadsheet, database, reader, format string.
TEXTS = (
    "\x1b]0;owned\x07\x1b[2J\x1b[31mred",
    "\x9b31mred",
    "<script>rawlog_attack()</script><img src=x onerror=rawlog_attack()>",
    "</pre></td></table><script>rawlog_attack()</script>",
    "=cmd|' /C calc'!A0",
    "'; DROP TABLE records; --",
    "\"; SELECT * FROM read_text('/etc/passwd'); --",
    "a line\r\nrawlog: warning: a forged line",
    "\u202egnp.exe",
    "{0.__class__.__mro__} %s%n",
    f"{UP}/name",
    f"/tmp/{OUTSIDE}",
    "x" * 4000,
    "",
)
NAMES = (
    UP,
    f"{UP}/name",
    "..",
    ".",
    "a/b",
    "name\x1b[31m",
    "<script>rawlog_attack()</script>",
    "'; DROP TABLE records; --",
    "x" * 200,
)
#: Only `--show-secrets` shows these.
PASSWORD = "hostile-password-4711"
SALT, STORED_KEY, SERVER_KEY = b"hostile-salt-4711", b"hostile-stored-key-4711", b"hostile-server-key-4711"
SECRETS = (PASSWORD, *(key.decode() for key in (SALT, STORED_KEY, SERVER_KEY)))
HUGE = 0x7FFFFFFF
NOW = 1_700_000_000_000
#: Zeros that a bomb grows to: far more than what is allowed, and more than memory if a reader believed every batch.
GROWN = 1 << 30


def _partition(folder: Path, *batches: bytes, name: str = "attack-0", metadata: str = "") -> Path:
    partition = folder / name
    partition.mkdir(parents=True)
    (partition / f"{0:020}.log").write_bytes(b"".join(batches))
    if metadata:
        (partition / "partition.metadata").write_text(metadata)
    return partition


def _batch(base: int, *values: bytes, codec: int = 0) -> bytes:
    records = b"".join(
        kafka.encode_record(delta, delta, value[:200], value, [(value.decode("utf-8", "replace"), value)])
        for delta, value in enumerate(values)
    )
    return kafka.encode_batch(
        records, record_count=len(values), base_offset=base, codec=codec, base_timestamp=NOW, max_timestamp=NOW
    )


def kafka_texts(folder: Path) -> None:
    """Keys, values and headers; the ids, names and numbers in small files around them."""
    values = [text.encode() for text in TEXTS]
    _partition(
        folder,
        _batch(0, *values),
        _batch(len(values), *values, codec=4),
        metadata="version: 0\ntopic_id: ../../x\x1b[31m\n",
    )
    for number, name in enumerate(NAMES):
        if "/" not in name and name not in (".", ".."):
            _partition(folder, _batch(0, *values), name=f"{name}-{number}")
    (folder / "meta.properties").write_text(
        f"version=1\nnode.id=1\ncluster.id={UP}\x1b[31m\ndirectory.id=<script>rawlog_attack()</script>\n"
    )
    lines = [f"{name.splitlines()[0]} 0 5" for name in NAMES]
    for name in ("replication-offset-checkpoint", "recovery-point-offset-checkpoint", "log-start-offset-checkpoint"):
        (folder / name).write_text(f"0\n{len(lines)}\n" + "\n".join(lines) + "\n")
    (folder / "cleaner-offset-checkpoint").write_text(f"0\n{HUGE}\nattack 0 5\n")
    (folder / "attack-0" / "leader-epoch-checkpoint").write_text(f"0\n{HUGE}\n0 0\n")


def kafka_counts(folder: Path) -> None:
    """Counts and lengths far beyond the bytes, their checksums right."""
    record = kafka.encode_record(0, 0, b"k", b"v")
    lies = [
        kafka.encode_batch(record, record_count=HUGE, base_offset=0, last_offset_delta=HUGE - 1),
        kafka.encode_batch(b"\0" + kafka.zigzag(0) * 2 + kafka.zigzag(HUGE), record_count=1, base_offset=1 << 32),
        kafka.encode_batch(_record_of_headers(HUGE), record_count=1, base_offset=2 << 32),
        kafka.encode_batch(kafka.zigzag(1 << 62) + b"\0" * 8, record_count=1, base_offset=3 << 32),
        struct.pack(">qi", 4 << 32, HUGE) + b"\0" * 60,
    ]
    for number, lie in enumerate(lies):
        _partition(folder, _batch(0, b"before"), lie, _batch(5 << 32, b"behind"), name=f"lie{number}-0")


def _record_of_headers(count: int) -> bytes:
    body = b"\0" + kafka.zigzag(0) + kafka.zigzag(0) + kafka.zigzag(-1) + kafka.zigzag(-1) + kafka.zigzag(count)
    return kafka.zigzag(len(body)) + body


def kafka_bombs(folder: Path) -> None:
    """Batches of few bytes that grow to a gigabyte, and one with a million headers."""
    for codec, packed in {1: _gzip_bomb(), 4: _zstd_bomb()}.items():
        bomb = kafka.encode_batch(packed, record_count=1, codec=0, base_offset=1)
        bomb = _with_attributes(bomb, codec)
        _partition(folder, _batch(0, b"before"), bomb, _batch(2, b"behind"), name=f"bomb{codec}-0")
    body = b"\0" + kafka.zigzag(0) * 2 + kafka.zigzag(-1) * 2 + kafka.zigzag(3_000_000) + b"\2a\1" * 3_000_000
    headers = kafka.zigzag(len(body)) + body
    _partition(folder, kafka.encode_batch(headers, record_count=1, codec=4), name="headers-0")


def _with_attributes(batch: bytes, attributes: int) -> bytes:
    covered = struct.pack(">h", attributes) + batch[23:]
    return batch[:17] + struct.pack(">I", kafka.crc32c(covered)) + covered


def _gzip_bomb() -> bytes:
    return gzip.compress(bytes(1 << 24)) * (GROWN >> 24)  # members one after the other are one stream


def _zstd_bomb() -> bytes:
    return zstandard.ZstdCompressor().compress(bytes(1 << 24)) * (GROWN >> 24)


def kraft_texts(folder: Path) -> None:
    """Topics, hosts, settings and users with hostile names, and the secrets that a metadata log holds."""
    records: list[tuple[str, int | None, dict[str, object]]] = []
    for number, name in enumerate((*NAMES, *TEXTS)):
        topic = bytes([number + 1] * 16)
        records.append(("TopicRecord", None, {"name": name, "topicId": topic}))
        partition = {"partitionId": 0, "topicId": topic, "replicas": [1], "isr": [1], "leader": 1, "leaderEpoch": 0}
        records.append(("PartitionRecord", None, {**partition, "partitionEpoch": 0, "directories": [bytes([7] * 16)]}))
        records.append(("ConfigRecord", None, _setting(name, "cleanup.policy", name)))
    for name in (
        "sasl.jaas.config",
        "listener.name.x.ssl.key.password",
        "ssl.keystore.key",
        "my.connector.password",
        "x.private.key",
        "a.b.token",
    ):
        records.append(("ConfigRecord", None, _setting("attack", name, f'x password="{PASSWORD}";')))
    scram = {"mechanism": 1, "salt": SALT, "storedKey": STORED_KEY, "serverKey": SERVER_KEY, "iterations": 4096}
    records += [("UserScramCredentialRecord", None, {"name": name, **scram}) for name in ("alice", TEXTS[0], TEXTS[2])]
    NewCluster(1, 25, NOW, records).write(Folder(folder), "hostileClusterAAAAAAAA")


def _setting(resource: str, name: str, value: str) -> dict[str, object]:
    return {"resourceType": 2, "resourceName": resource, "name": name, "value": value}


def rocketmq_texts(folder: Path) -> None:
    """Topics, tags and keys of messages; names and nesting in the settings."""
    shutil.copytree(SAMPLES / "rocketmq", folder / "store")
    store = folder / "store" / "store"
    log = store / "commitlog" / f"{0:020}"
    messages, out = list(rocketmq.messages(log.read_bytes())), b""
    topics = [name.encode() for name in (*NAMES, *(text for text in TEXTS if 0 < len(text.encode()) < 120))]
    for number, topic in enumerate(topics):
        text = TEXTS[number % len(TEXTS)].encode()
        properties = b"".join(
            name + b"\x01" + text[:200] + b"\x02" for name in (b"TAGS", b"KEYS", b"UNIQ_KEY", topic[:60])
        )
        out += rocketmq.encode(
            replace(
                messages[0], physical_offset=len(out), queue_offset=0, queue_id=0, version=1, topic=topic[:127], body=text,
                body_crc=rocketmq.crc(text), properties=properties,
            )
        )  # fmt: skip
    log.write_bytes(out + bytes((1 << 16) - len(out)))
    (store / "commitlog" / f"{1 << 16:020}").unlink()
    shutil.rmtree(store / "consumequeue")
    shutil.rmtree(store / "index")
    config = store / "config"
    table = {
        name: {"topicName": name, "readQueueNums": HUGE, "writeQueueNums": HUGE, "perm": 6} for name in (*NAMES, *TEXTS)
    }
    (config / "topics.json").write_text(json.dumps({"topicConfigTable": table}))
    (config / "consumerOffset.json").write_text(
        json.dumps({"offsetTable": {f"{name}@{name}": {"0": 1} for name in NAMES}})
    )
    (config / "subscriptionGroup.json").write_text("[" * 200_000)
    (config / "delayOffset.json").write_text('{"a":' * 200_000)


def rocketmq_counts(folder: Path) -> None:
    """Sizes beyond the bytes in the commit log, and a body that grows to a gigabyte."""
    shutil.copytree(SAMPLES / "rocketmq", folder / "store")
    log = folder / "store" / "store" / "commitlog" / f"{0:020}"
    data = bytearray(log.read_bytes())
    [first, second, *_] = rocketmq.messages(bytes(data))
    struct.pack_into(">i", data, second.position, HUGE)
    packer = zlib.compressobj(9)
    body = b"".join(packer.compress(bytes(1 << 20)) for _ in range(16)) + packer.flush()
    bomb = replace(first, body=body, body_crc=rocketmq.crc(body), sys_flag=first.sys_flag | 1)
    encoded = rocketmq.encode(bomb)
    log.write_bytes(encoded + bytes(data[len(encoded) :]))


def ambry_texts(folder: Path) -> None:
    """File names, owners and types of blobs."""
    (folder / "9").mkdir()
    with StoreWriter(Folder(folder / "9"), capacity=1 << 20, style=Style(max_entries=50)) as writer:
        for number, text in enumerate((*NAMES, *TEXTS)):
            key = keys.make(
                6, 9, f"{number:08x}-1234-4abc-8def-{number:012x}", datacenter_id=2, account_id=101, container_id=7
            )
            properties = Properties(
                blob_size=len(text.encode()), creation_time=NOW, service_id=text, owner_id=text, content_type=text,
                content_encoding=text, filename=text,
            )  # fmt: skip
            writer.append(put_message(key, properties, text.encode(), user_metadata=text.encode()))
        writer.close()


def recordings(folder: Path) -> None:
    """Keys and values; sizes beyond the bytes."""
    head = struct.pack(">i", 2) + bytes(16)
    entries = b"".join(
        struct.pack(">qqq", NOW // 1000, len(text), len(text)) + text * 2 for text in map(str.encode, TEXTS)
    )
    (folder / "texts.log").write_bytes(head + entries)
    (folder / "sizes.log").write_bytes(head + entries + struct.pack(">qqq", NOW // 1000, 1 << 62, HUGE) + entries)


def special_files(folder: Path) -> None:
    """Links out of the tree and in circles, a pipe, a socket, a device, and names that are texts of an attack."""
    shutil.copytree(SAMPLES / "kafka" / "codec-none-0", folder / "attack-0")
    (folder / "circle").symlink_to(folder)
    (folder / "attack-0" / "circle").symlink_to(folder)
    (folder / "attack-0" / f"{500:020}.log").symlink_to("/etc/passwd")
    (folder / "attack-0" / f"{600:020}.log").symlink_to("/dev/zero")
    (folder / "attack-0" / f"{700:020}.log").symlink_to(folder / "nowhere")
    os.mkfifo(folder / "attack-0" / f"{800:020}.log")
    (folder / "attack-0" / "partition.metadata").unlink()
    os.mkfifo(folder / "attack-0" / "partition.metadata")
    with socket.socket(socket.AF_UNIX) as pipe:
        previous = os.getcwd()
        os.chdir(folder)
        try:
            pipe.bind("meta.properties")
        finally:
            os.chdir(previous)
    for text in TEXTS:
        if text and "/" not in text and len(text) < 200:
            (folder / text).write_bytes(b"content")


#: The stores by name, and the file in each that `explain` shows.
STORES: dict[str, tuple[Callable[[Path], None], str]] = {
    "kafka-texts": (kafka_texts, f"attack-0/{0:020}.log"),
    "kafka-counts": (kafka_counts, f"lie0-0/{0:020}.log"),
    "kafka-bombs": (kafka_bombs, f"bomb4-0/{0:020}.log"),
    "kraft-texts": (kraft_texts, f"__cluster_metadata-0/{0:020}.log"),
    "rocketmq-texts": (rocketmq_texts, f"store/store/commitlog/{0:020}"),
    "rocketmq-counts": (rocketmq_counts, f"store/store/commitlog/{0:020}"),
    "ambry-texts": (ambry_texts, "9/0_log"),
    "recordings": (recordings, "texts.log"),
    "special-files": (special_files, f"attack-0/{0:020}.log"),
}
