"""Writing a store: rows of `records` become a directory on which a broker starts.

Commit-log files with blank entries where a file ends, `config/topics.json`, and the queues, index and checkpoint that belong to them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rawlog.core.errors import EncodeError, OptionError, unknown
from rawlog.core.format import File, Judge
from rawlog.formats.rocketmq import paths, properties
from rawlog.formats.rocketmq.encoder import Entries, binary, host_bytes, host_flags
from rawlog.formats.rocketmq.kernels import encode as kernels
from rawlog.formats.rocketmq.layouts import (
    BLANK,
    CODEC_SHIFT,
    CODEC_TYPES,
    LARGEST_BODY,
    MAGIC_BLANK,
    SysFlag,
)
from rawlog.formats.rocketmq.store.rebuild import write_derived
from rawlog.formats.rocketmq.store.sizes import OPTIONS as SIZE_OPTIONS
from rawlog.formats.rocketmq.store.sizes import Sizes
from rawlog.formats.rocketmq.store.stage import Nowhere, Report
from rawlog.io import compression
from rawlog.io.output import new_directory, why_unsafe

OPTIONS = (
    "topic", "partition", "codec", "compress_over", "born_host", "store_host", "crc_property", "derived",
    "commitlog_size", "queue_size", "batch_queue_size", "ext_size", "index_slots", "index_entries", "delay_levels",
)  # fmt: skip
COMPRESS_OVER = 4096


def blank(room: int) -> bytes:
    """The entry that closes a file with `room` bytes left."""
    return np.array([(room, MAGIC_BLANK)], BLANK.dtype).tobytes()


class LogWriter:
    """Commit-log files of one size, filled in order below a directory; the last one is padded when it is closed."""

    def __init__(self, folder: Path | Nowhere, file_size: int, start: int = 0) -> None:
        assert start % file_size == 0
        self.folder, self.file_size, self.end = folder, file_size, start
        folder.mkdir(parents=True, exist_ok=True)
        self._file: Any = None
        self.files = 0

    def append(self, entries: Entries, most: int = 8 << 20) -> NDArray[np.int64]:
        """Write entries at the end of the log by the roll rule; their addresses. EncodeError for one that fits no file."""
        sizes = entries.sizes()
        addresses = np.empty(len(entries), np.int64)
        end = int(kernels.place_entries(sizes, self.end, self.file_size, addresses))
        if end < 0:
            raise EncodeError(
                f"row {-1 - end:,}: an entry of {int(sizes[-1 - end]):,} bytes fits no file of {self.file_size:,}"
            )
        row = 0
        while row < len(entries):
            number = int(addresses[row]) // self.file_size
            limit = min((number + 1) * self.file_size, int(addresses[row]) + max(most, int(sizes[row])))
            stop = int(np.searchsorted(addresses + sizes, limit, side="right"))
            start, upto = int(addresses[row]), int(addresses[stop - 1] + sizes[stop - 1])
            part = entries.slice(row, stop)
            self.seek(start)
            self._file.write(part.encode(sizes[row:stop], addresses[row:stop], start, upto).data)
            self.end, row = upto, stop
        return addresses

    def seek(self, address: int) -> None:
        """Go on at `address`: in this file, or after closing it with a blank entry in the next."""
        if self._file is not None and address // self.file_size != (self.end - 1) // self.file_size:
            self.close_file(blank_entry=True)
        if self._file is None:
            path = self.folder / f"{address // self.file_size * self.file_size:020}"
            self._file = path.open("wb")
            self.files += 1
        self._file.seek(address % self.file_size)

    def write(self, address: int, data: Any) -> None:
        """Raw bytes at an address that is not before the end."""
        self.seek(address)
        self._file.write(data)
        self.end = address + len(data)

    def close_file(self, *, blank_entry: bool) -> None:
        if self._file is None:
            return
        room = -self.end % self.file_size
        if blank_entry and room:
            self._file.seek(self.file_size - room)
            self._file.write(blank(room))
        if not isinstance(self.folder, Nowhere):
            self._file.truncate(self.file_size)
        self._file.close()
        self._file = None

    def close(self) -> None:
        self.close_file(blank_entry=False)


def write(batches: Iterable[pa.RecordBatch], target: str, options: Mapping[str, str], overwrite: bool = False) -> int:
    """Rows of `records` as a store directory, as `write_store` does it; the number of rows."""
    return write_store(batches, target, options, overwrite=overwrite).messages


def check_options(options: Mapping[str, str]) -> Sizes:
    """The file sizes asked for. OptionError for options that are none, or say what cannot be."""
    for name in options:
        if name not in OPTIONS:
            raise unknown("option of rocketmq", name, OPTIONS)
    for name, least in (("partition", 0), ("compress_over", 0)):
        text = options.get(name, "0")
        if not (text.isascii() and text.isdecimal() and int(text) >= least):
            raise OptionError(f"{name} {text!r}: a whole number expected")
    codec, derived = options.get("codec", "none"), options.get("derived", "full")
    if codec != "none" and codec not in CODEC_TYPES:
        raise unknown("codec of rocketmq", codec, ("none", *CODEC_TYPES))
    if derived not in ("full", "none"):
        raise unknown("value of derived", derived, ("full", "none"))
    if options.get("crc_property", "false") not in ("true", "false"):
        raise unknown("value of crc_property", options["crc_property"], ("true", "false"))
    for name in ("store_host", "born_host"):
        host_bytes(options.get(name, "127.0.0.1:10911"))
    return Sizes(known=frozenset(SIZE_OPTIONS)).told(options)  # asked for, or the defaults on purpose


def write_store(
    batches: Iterable[pa.RecordBatch],
    target: str | os.PathLike[str],
    options: Mapping[str, str] | None = None,
    *,
    overwrite: bool = False,
) -> Report:
    """Rows of `records` as a store directory. EncodeError for what no entry can hold; the target must not exist, unless `overwrite`.

    Options: `topic`, `partition` (where rows have none), `codec` (none, zlib, lz4, zstd) for bodies from `compress_over` bytes on,
    `store_host`, `born_host` (address:port), `crc_property`, the file sizes of the broker that shall read it (`rebuild.Sizes`), and
    `derived` = `full` (consume queues, index, checkpoint) or `none` (an empty `abort` makes the broker build them).
    """
    options = options or {}
    sizes = check_options(options)
    with new_directory(target, overwrite=overwrite) as stage:
        report = Report(os.fspath(target))
        log: LogWriter | None = None
        numbering = _Numbering()
        for batch in batches:
            if batch.num_rows:
                log = log or LogWriter(stage / "commitlog", sizes.commit_log, _log_start(batch, sizes))
                log.append(entries_of(batch, options, numbering))
                report.messages += batch.num_rows
        if log is None:
            log = LogWriter(stage / "commitlog", sizes.commit_log)
            log.seek(0)
        log.close()
        report.files += log.files + 1
        write_topics(stage, numbering.queues)
        if options.get("derived", "full") == "full":
            write_derived(store_files(stage), stage, sizes, options, report)
            report.messages //= 2  # counted again while deriving
        else:
            (stage / "abort").touch()
    return report


def _log_start(first: pa.RecordBatch, sizes: Sizes) -> int:
    """Where the log begins: behind one file, as if that had expired, if queues may not begin at 0.

    The units that fill the front of such a queue point at address 0: a broker takes them for messages if there is one.
    """
    return sizes.commit_log if first.column("offset").null_count < first.num_rows else 0


def store_files(root: Path) -> list[File]:
    """The commit-log files below a directory, recognised."""
    files = []
    for path in sorted((root / "commitlog").iterdir()):
        place = paths.is_commit_log(str(path))
        if place is not None:
            files.append(File(str(path), path.stat().st_size, None, "rocketmq.commitlog", place))
    return files


def write_topics(
    stage: Path, queues: Mapping[str, int], attributes: Mapping[str, dict[str, str]] | None = None
) -> None:
    """`config/topics.json` with as many queues for each topic as its largest queue id asks for."""
    table = {
        name: {
            "topicName": name,
            "readQueueNums": most + 1,
            "writeQueueNums": most + 1,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": False,
            **({"attributes": attributes[name]} if attributes and name in attributes else {}),
        }
        for name, most in sorted(queues.items())
    }
    (stage / "config").mkdir(parents=True, exist_ok=True)
    (stage / "config" / "topics.json").write_text(
        json.dumps({"topicConfigTable": table}, indent="\t", ensure_ascii=False)
    )


class _Numbering:
    """What goes on from batch to batch: the next number of each queue, and the time, which never falls."""

    def __init__(self) -> None:
        self.next: dict[tuple[str, int], int] = {}
        self.queues: dict[str, int] = {}
        self.time = 1

    def number(self, topics: pa.Array, queue_ids: NDArray[np.int64], wanted: pa.Array) -> NDArray[np.int64]:
        """The queue offset of every row: a queue begins with what its first row wants, and has no gaps."""
        firsts = pc.fill_null(wanted, 0).to_numpy()
        encoded = topics.dictionary_encode()
        names, codes = encoded.dictionary.to_pylist(), np.asarray(encoded.indices, np.int64)
        joined = (codes << 32) | queue_ids
        order = np.argsort(joined, kind="stable")
        offsets = np.empty(joined.size, np.int64)
        for part in np.split(order, np.flatnonzero(np.diff(joined[order])) + 1):
            name, queue_id = names[int(codes[part[0]])], int(queue_ids[part[0]])
            first = self.next.get((name, queue_id), max(0, int(firsts[part[0]])))
            offsets[part] = first + np.arange(part.size)
            self.next[name, queue_id] = first + part.size
            self.queues[name] = max(queue_id, self.queues.get(name, 0))
        return offsets

    def times(self, born: NDArray[np.int64]) -> NDArray[np.int64]:
        stored = np.maximum.accumulate(np.maximum(born, self.time))
        self.time = int(stored[-1])
        return stored


def entries_of(batch: pa.RecordBatch, options: Mapping[str, str], numbering: _Numbering) -> Entries:
    """The entries of rows, numbered on. EncodeError for what an entry cannot hold."""
    count = batch.num_rows
    topics, queues = _places(batch, options)
    micros = pc.fill_null(batch.column("timestamp").cast(pa.int64()), 0).to_numpy()
    born = micros // 1000
    numbers = np.zeros((kernels.NUMBERS, count), np.int64)
    numbers[kernels.N_QUEUE_ID] = queues
    numbers[kernels.N_QUEUE_OFFSET] = numbering.number(topics, queues, batch.column("offset"))
    numbers[kernels.N_BORN_TIME] = born
    numbers[kernels.N_STORE_TIME] = numbering.times(born)
    store_host, store_v6 = host_bytes(options.get("store_host", "127.0.0.1:10911"))
    born_host, born_v6 = host_bytes(options.get("born_host", options.get("store_host", "127.0.0.1:10911")))
    numbers[kernels.N_SYS_FLAG] = host_flags(born_v6, store_v6)
    bodies, flags = _bodies(batch.column("value"), options)
    numbers[kernels.N_SYS_FLAG] |= flags
    return Entries(
        numbers,
        np.broadcast_to(born_host, (count, born_host.size)).copy(),
        np.broadcast_to(store_host, (count, store_host.size)).copy(),
        bodies,
        topics.cast(pa.binary()),
        properties.encode(batch.column("key"), batch.column("headers")),
        options.get("crc_property", "false") == "true",
    )


def _places(batch: pa.RecordBatch, options: Mapping[str, str]) -> tuple[pa.Array, NDArray[np.int64]]:
    """Topic and queue of every row. EncodeError for one that has none."""
    topics = _filled(batch.column("topic"), options.get("topic"), "topic", pa.string())
    if pc.any(pc.equal(pc.binary_length(topics.cast(pa.binary())), 0)).as_py():
        raise EncodeError("a row without a topic: give one with topic=NAME")
    for name in pc.unique(topics).to_pylist():
        if (why := why_unsafe(name)) is not None:
            row = pc.index(topics, name).as_py()
            raise EncodeError(f"row {row:,}: topic {name!r} cannot be the name of a directory: {why}")
    queue_ids = _filled(batch.column("partition"), int(options.get("partition", "0")), "partition", pa.int32())
    queues = queue_ids.to_numpy().astype(np.int64)
    if (queues < 0).any():
        raise EncodeError("a queue id below zero")
    return topics, queues


def _filled(array: pa.Array, value: Any, name: str, type: pa.DataType) -> pa.Array:
    if array.null_count:
        if value is None:
            raise EncodeError(f"a row without a {name}: give one with {name}=…")
        array = pc.fill_null(array, pa.scalar(value, type))
    return array


def _bodies(values: pa.Array, options: Mapping[str, str]) -> tuple[pa.Array, NDArray[np.int64]]:
    """Bodies, compressed where asked for, and the bits of the sysflag that say so."""
    values = pc.fill_null(values, b"")
    codec, over = options.get("codec", "none"), int(options.get("compress_over", COMPRESS_OVER))
    flags = np.zeros(len(values), np.int64)
    lengths = np.diff(binary(values)[0])
    if codec != "none":
        large = lengths >= over
        if large.any():
            values = pa.array(
                [
                    bytes(compression.compress(codec, body)) if packed else body
                    for body, packed in zip(values.to_pylist(), large.tolist(), strict=True)
                ],
                pa.binary(),
            )
            flags[large] = int(SysFlag.COMPRESSED) | CODEC_TYPES[codec] << CODEC_SHIFT
            lengths = np.diff(binary(values)[0])
    bad = np.flatnonzero(lengths > LARGEST_BODY)
    if bad.size:
        raise EncodeError(
            f"row {bad[0]:,}: a body of {int(lengths[bad[0]]):,} bytes, at most {LARGEST_BODY:,} are taken by a broker"
        )
    return values, flags


def losses(options: Mapping[str, str]) -> Judge:
    """What rows of `records` would read back otherwise than they are, once `properties.restore` has seen them.

    OptionError for options that are none.
    """
    check_options(options)
    numbering = _Numbering()

    def judge(batch: pa.RecordBatch) -> dict[str, NDArray[np.bool_]]:
        time = batch.column("timestamp")
        topics, queues = _places(batch, options)
        numbers = numbering.number(topics, queues, batch.column("offset"))
        micros = pc.fill_null(time.cast(pa.int64()), 0).to_numpy()
        return {
            "value": _mask(batch.column("value").is_null()),
            "timestamp": _mask(time.is_null()) | (micros % 1000 != 0),
            "timestampType": _mask(pc.not_equal(batch.column("timestampType"), 0)),
            "topic": _mask(batch.column("topic").is_null()),
            "partition": _mask(batch.column("partition").is_null()),
            "offset": _mask(pc.not_equal(batch.column("offset"), pa.array(numbers))),
        }

    return judge


def _mask(test: Any) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = pc.fill_null(test, False).to_numpy(zero_copy_only=False)
    return found.copy()
