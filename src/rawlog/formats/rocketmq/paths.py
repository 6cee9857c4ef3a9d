"""Where RocketMQ keeps its files below the store's root, and what their names say."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rawlog.formats.rocketmq.layouts import (
    BLANK,
    DLEDGER,
    DLEDGER_MAGIC,
    HEAD,
    LARGEST_FILE,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SMALLEST_V1,
)
from rawlog.model.errors import RawlogError
from rawlog.model.format import File, Origin, Place

if TYPE_CHECKING:
    from rawlog.model.store import Store

_LOG_NAME = re.compile(r"\d{20}")
_INDEX_NAME = re.compile(r"\d{17}")
_ROCKSDB_NAME = re.compile(r"CURRENT|IDENTITY|LOCK|LOG(\.old\.\d+)?|(MANIFEST|OPTIONS)-\d+|\d{6,}\.(sst|log|blob)")
_LARGEST = (1 << 63) - 1
COMMIT_LOG_NAME = "rocketmq.commitlog"

CONFIGS = (
    "topics.json",
    "subscriptionGroup.json",
    "consumerOffset.json",
    "lmqConsumerOffset.json",
    "delayOffset.json",
    "consumerFilter.json",
    "consumerOrderInfo.json",
    "topicQueueMapping.json",
    "messageRequestMode.json",
    "tieredStoreMetadata.json",
    "timermetrics",
    "transactionMetrics",
)

CONFIG_DATABASES = ("topics", "subscriptionGroups", "consumerOffsets", "metadata", "rdb")


def parts(path: str) -> list[str]:
    """The names of a path or URL, the last first."""
    path = path.partition("?")[0] if "://" in path else path
    return path.split("/")[::-1]


def above(path: str, levels: int) -> str:
    """The path so many levels up."""
    path = path.partition("?")[0] if "://" in path else path
    for _ in range(levels):
        path = path.rpartition("/")[0]
    return path


def _number(name: str) -> int | None:
    return int(name) if _LOG_NAME.fullmatch(name) and int(name) <= _LARGEST else None


def is_commit_log(path: str) -> Place | None:
    """`commitlog/<20 digits>`, also of a directory such as commitlog2, and `dledger-<id>/data/<20 digits>`."""
    names = parts(path)
    start = _number(names[0])
    if start is None or len(names) < 2:
        return None
    if names[1].lower().startswith("commitlog"):
        return Place(start_offset=start, group=above(path, 2))
    if len(names) > 2 and names[1] == "data" and names[2].startswith("dledger-"):
        return Place(start_offset=start, group=above(path, 3))
    return None


def is_dledger_index(path: str) -> Place | None:
    """`dledger-<id>/index/<20 digits>`."""
    names = parts(path)
    start = _number(names[0])
    if start is not None and len(names) > 2 and names[1] == "index" and names[2].startswith("dledger-"):
        return Place(start_offset=start, group=above(path, 3))
    return None


def below_root(file: File) -> str:
    """The path of a file below its store's root; commit-log files of all disks are in one directory."""
    names = parts(file.path)
    if (
        file.format == COMMIT_LOG_NAME
        and _number(names[0]) is not None
        and not "".join(names[2:3]).startswith("dledger-")
    ):
        return f"commitlog/{names[0]}"
    root = file.place.group or above(file.path, 1)
    return file.path[len(root) :].lstrip("/")


def store_name(store: Store) -> str | None:
    """What a store may be called by other files than its name: by its DLedger group, or by its `brokerIdentity`, which has to be read."""
    for file in store:
        if file.format == COMMIT_LOG_NAME and "".join(parts(file.path)[2:3]).startswith("dledger-"):
            return parts(file.path)[2]
    return "broker" if any(file.format == "rocketmq.identity" for file in store) else None


def is_dledger_state(path: str) -> Place | None:
    """`dledger-<id>/checkpoint` and `currterm`: text, and not what a store's own `checkpoint` is."""
    names = parts(path)
    if (
        len(names) > 1
        and names[1].startswith("dledger-")
        and names[0].removesuffix(".bak") in ("checkpoint", "currterm")
    ):
        return Place(group=above(path, 2), state="backup" if names[0].endswith(".bak") else None)
    return None


def queue_file(folder: str, levels: int = 4, parent: str | None = None) -> Callable[[str], Place | None]:
    """A matcher for `<folder>/<topic>/<queue id>/<20 digits>`."""

    def match(path: str) -> Place | None:
        names = parts(path)
        start = _number(names[0])
        if start is None or len(names) < 4 or names[3] != folder or not names[1].isdecimal():
            return None
        if parent is not None and (len(names) < 5 or names[4] != parent):
            return None
        if int(names[1]) > 0x7FFF_FFFF:
            return None
        return Place(names[2], int(names[1]), start, above(path, levels))

    return match


def is_index(path: str) -> Place | None:
    """`index/<17 digits>`."""
    names = parts(path)
    if len(names) > 1 and names[1] == "index" and _INDEX_NAME.fullmatch(names[0]):
        return Place(group=above(path, 2))
    return None


def file_named(*wanted: str, folder: str | None = None) -> Callable[[str], Place | None]:
    """A matcher for fixed names, in a folder of the root or in the root itself. A `.bak` next to it is the copy before."""

    def match(path: str) -> Place | None:
        names = parts(path)
        name = names[0].removesuffix(".bak")
        if name not in wanted or (folder is not None and (len(names) < 2 or names[1] != folder)):
            return None
        state = "backup" if names[0].endswith(".bak") else None
        return Place(group=above(path, 1 if folder is None else 2), state=state)

    return match


def is_timer_log(path: str) -> Place | None:
    """`timerlog/<20 digits>`."""
    names = parts(path)
    start = _number(names[0])
    if start is not None and len(names) > 1 and names[1] == "timerlog":
        return Place(start_offset=start, group=above(path, 2))
    return None


def is_stray(path: str) -> Place | None:
    """Any other file where a broker expects its own only: it will not start with it there."""
    names = parts(path)
    if len(names) > 1 and names[1] == "commitlog":
        return Place(group=above(path, 2), state="stray")
    if len(names) > 3 and names[1].isdecimal() and names[3] in ("consumequeue", "batchconsumequeue"):
        return Place(group=above(path, 4), state="stray")
    return None


def _int(head: bytes, position: int) -> int:
    return int.from_bytes(head[position : position + 4], "big", signed=True)


def _is_dledger(head: bytes) -> bool:
    """Whether bytes begin with the head of a DLedger entry that a message follows."""
    if len(head) < DLEDGER.size + BLANK.size or _int(head, DLEDGER.at("magic")) != DLEDGER_MAGIC:
        return False
    size, body = _int(head, DLEDGER.at("size")), _int(head, DLEDGER.at("body_size"))
    total, magic = (_int(head, DLEDGER.size + HEAD.at(name)) for name in ("total_size", "magic"))
    return size == DLEDGER.size + body and total == body and magic in (MAGIC_V1, MAGIC_V2)


def sniff_commit_log(head: bytes, size: int) -> bool:
    """Whether bytes begin with a message, a blank entry, or a message inside of a DLedger entry."""
    if len(head) < BLANK.size:
        return False
    if _is_dledger(head):
        head = head[DLEDGER.size :]
    total, magic = _int(head, HEAD.at("total_size")), _int(head, HEAD.at("magic"))
    if magic == MAGIC_BLANK:
        return BLANK.size <= total <= LARGEST_FILE
    return magic in (MAGIC_V1, MAGIC_V2) and SMALLEST_V1 <= total <= LARGEST_FILE


def begin_commit_log(head: bytes, size: int) -> Origin:
    """Frames begin at once; the kind is the address of the file's first byte as its first message says, -1 if it does not."""
    if _is_dledger(head):
        at = DLEDGER.at("position")
        return Origin(0, max(-1, int.from_bytes(head[at : at + 8], "big", signed=True)))
    if len(head) >= HEAD.size and _int(head, HEAD.at("magic")) in (MAGIC_V1, MAGIC_V2):
        at = HEAD.at("physical_offset")
        return Origin(0, max(-1, int.from_bytes(head[at : at + 8], "big", signed=True)))
    return Origin(0, -1)


def settle(files: Sequence[File]) -> list[File]:
    """Commit-log files in the places that a broker has them in; all but the one that it appends to are sealed.

    Those known by their first bytes begin where their names say, whatever their directory is called. Directories of nothing else belong to
    the one store that has the rest, unless it has files of the same names.
    """
    files = _group_logs([_number_log(file) for file in files])
    logs: dict[str, list[File]] = {}
    for file in files:
        if file.format == COMMIT_LOG_NAME and file.place.group is not None and file.place.start_offset is not None:
            logs.setdefault(file.place.group, []).append(file)
    last = {group: _last_used(group_logs) for group, group_logs in logs.items()}
    return [
        replace(file, place=replace(file.place, sealed=True))
        if file.format == COMMIT_LOG_NAME and (file.place.start_offset or 0) < last.get(str(file.place.group), 0)
        else file
        for file in files
    ]


def _last_used(logs: Sequence[File]) -> int:
    """Where the last file of a commit log begins that is not empty: a broker makes files of zeros before it needs them."""
    from rawlog.io.storage import Source  # only a store with several files needs it

    starts = sorted(logs, key=lambda file: file.place.start_offset or 0)
    for file in reversed(starts[1:]):
        try:
            with Source(file.path) as source:
                if any(source.read(0, LOOKED_AT)):
                    return file.place.start_offset or 0
        except (RawlogError, OSError):
            continue  # `problem` of the file, or a finding
    return 0


LOOKED_AT = 64 << 10
"""Zeros at the beginning of a file that are more than a damaged block: the file is not used yet."""


def _group_logs(files: list[File]) -> list[File]:
    """Assign commit-log directories on other disks to the one store that has the rest."""
    starts: dict[str, set[int | None]] = {}
    roots = {file.place.group for file in files if file.format != COMMIT_LOG_NAME and file.place.group is not None}
    for file in files:
        if file.format == COMMIT_LOG_NAME and file.place.group is not None:
            starts.setdefault(file.place.group, set()).add(file.place.start_offset)
    if len(roots) != 1:
        return files
    (root,) = roots
    taken, others = starts.pop(root, set()), set()
    for group, group_starts in sorted(starts.items()):
        if taken.isdisjoint(group_starts):
            taken |= group_starts
            others.add(group)
    return [
        replace(file, place=replace(file.place, group=root)) if file.place.group in others else file for file in files
    ]


def _number_log(file: File) -> File:
    start = _number(parts(file.path)[0])
    if file.format != COMMIT_LOG_NAME or file.place.start_offset is not None or start is None:
        return file
    return replace(file, place=replace(file.place, start_offset=start, group=above(file.path, 2)))


def is_queue_database(path: str) -> Place | None:
    """All consume queues in one RocksDB database (5.2 on): in `consumequeue/` next to files of other names, or in a directory of its own
    (5.5 on, `useSeparateStorePathForRocksdbCQ`).
    """
    names = parts(path)
    if len(names) > 1 and names[1] == "consumequeue" and _ROCKSDB_NAME.fullmatch(names[0]):
        return Place(group=above(path, 2))
    return in_database("consumequeue_rocksdb")(path)


def is_config_database(path: str) -> Place | None:
    """Topics, groups or offsets as a database instead of JSON: `config/<what>/<a file of RocksDB>`."""
    return in_database(*CONFIG_DATABASES, parent="config")(path)


def in_database(*folders: str, parent: str | None = None) -> Callable[[str], Place | None]:
    """A matcher for the files of RocksDB databases in directories of these names."""
    levels = 2 if parent is None else 3

    def match(path: str) -> Place | None:
        names = parts(path)
        if len(names) <= levels - 1 or names[1] not in folders or not _ROCKSDB_NAME.fullmatch(names[0]):
            return None
        return Place(group=above(path, levels)) if parent is None or names[2] == parent else None

    return match


def is_config(path: str) -> Place | None:
    """One of the files of `config/`."""
    return file_named(*CONFIGS, folder="config")(path)


def is_position(path: str) -> Place | None:
    """`compaction/position-checkpoint`."""
    return file_named("position-checkpoint", folder="compaction")(path)
