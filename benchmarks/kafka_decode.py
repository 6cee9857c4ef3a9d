"""How fast batches of magic 2 become Arrow columns, compared with aiokafka's MemoryRecords (checksums on) in the same run.

python benchmarks/kafka_decode.py --mb 64 --window 1 [--codec zstd] [--columns key,value]
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from rawlog.formats.kafka.log.heads import take
from rawlog.formats.kafka.log.kernels import heads as kernels
from rawlog.formats.kafka.log.layouts import BATCH, CODECS
from rawlog.formats.kafka.log.records import COLUMNS, decode_columns
from rawlog.io import checksums, compression
from rawlog.kernels import byte_view


def zigzag(number: int) -> bytes:
    """A signed number as Kafka writes it."""
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def make_log(size: int, records: int, value_size: int, codec: str, headers: int) -> bytes:
    """Batches of `records` records with 8-byte keys and hex-like values; the body of one is used again and again."""
    pieces, total, base = [], 0, 0
    bodies = []
    for _ in range(16):
        body = b""
        for delta in range(records):
            value = os.urandom(value_size // 2).hex().encode()
            head = b"\0" + zigzag(delta) + zigzag(delta) + zigzag(8) + b"k%07d" % delta + zigzag(len(value)) + value
            head += zigzag(headers) + (zigzag(5) + b"trace" + zigzag(4) + b"abcd") * headers
            body += zigzag(len(head)) + head
        bodies.append(bytes(compression.compress(codec, body)))
    while total < size:
        batch = np.zeros(1, BATCH.dtype)
        body = bodies[len(pieces) % 16]
        batch["base_offset"], batch["length"], batch["magic"] = base, BATCH.size - 12 + len(body), 2
        batch["attributes"], batch["last_offset_delta"], batch["record_count"] = (
            CODECS.index(codec),
            records - 1,
            records,
        )
        batch["base_timestamp"] = 1_700_000_000_000 + base
        batch["max_timestamp"] = 1_700_000_000_000 + base + records - 1
        batch["producer_id"] = batch["producer_epoch"] = batch["base_sequence"] = batch["leader_epoch"] = -1
        whole = batch.tobytes() + body
        batch["crc"] = checksums.crc32c(whole, BATCH.after("crc"))
        pieces.append(batch.tobytes() + body)
        total += len(whole)
        base += records
    return b"".join(pieces)


def read_with_rawlog(log: bytes, window: int, columns: frozenset[str], check_crc: bool = True) -> int:
    """Walk, checksum and decode, a window at a time."""
    data = byte_view(log)
    room = window // BATCH.size + 1
    starts, stops = np.empty(room, np.int64), np.empty(room, np.int64)
    position, count = 0, 0
    while position < data.size:
        part = data[position : position + window]
        found, reached, _ = kernels.scan_batches(part, 0, starts, stops)
        if not found:
            break  # an unfinished tail
        head = take(part, starts[:found], stops[:found], check_crc=check_crc)
        assert head.sound.all()
        count += decode_columns(part, starts[:found], stops[:found], columns, head=head).count
        position += reached
    return count


def read_with_aiokafka(log: bytes) -> int:
    """What a Python consumer does; every field touched that rawlog fills."""
    from aiokafka.record import MemoryRecords

    records, count = MemoryRecords(log), 0
    while records.has_next():
        batch = records.next_batch()
        assert batch.validate_crc()
        for record in batch:
            _ = record.offset, record.timestamp, record.key, record.value, record.headers
            count += 1
    return count


def best(run: Callable[[], int], times: int) -> tuple[float, int]:
    """The shortest of several runs in seconds of this process (the machine may be shared), and what it counted."""
    seconds, count = float("inf"), 0
    for _ in range(times):
        start = time.process_time()
        count = run()
        seconds = min(seconds, time.process_time() - start)
    return seconds, count


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=64)
    parser.add_argument("--window", type=float, default=1.0, help="MB decoded at a time")
    parser.add_argument("--records", type=int, default=100, help="a batch")
    parser.add_argument("--value", type=int, default=100, help="bytes of a value")
    parser.add_argument("--headers", type=int, default=0, help="a record")
    parser.add_argument("--codec", default="none", choices=CODECS)
    parser.add_argument("--columns", default=",".join(sorted(COLUMNS)))
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--no-aiokafka", action="store_true")
    options = parser.parse_args()
    log = make_log(options.mb << 20, options.records, options.value, options.codec, options.headers)
    window, columns = int(options.window * (1 << 20)), frozenset(options.columns.split(","))
    read_with_rawlog(log[: 1 << 18], window, columns)  # compile

    def line(name: str, seconds: float, count: int) -> None:
        print(f"{name:34} {count / seconds / 1e6:8.2f} M records/s {len(log) / seconds / 1e9:7.3f} GB/s")

    print(
        f"{len(log) >> 20} MB, codec {options.codec}, window {options.window} MB, pool {pa.default_memory_pool().backend_name}"
    )
    seconds, count = best(lambda: read_with_rawlog(log, window, columns), options.times)
    line("rawlog, walk + CRC + decode", seconds, count)
    without, _ = best(lambda: read_with_rawlog(log, window, columns, check_crc=False), options.times)
    line("rawlog, walk + decode", without, count)
    sizes, _ = best(lambda: read_with_rawlog(log, window, frozenset({"offset"}), check_crc=False), options.times)
    line("rawlog, offsets only, no CRC", sizes, count)
    if not options.no_aiokafka:
        part = log[: 8 << 20]
        theirs, their_count = best(lambda: read_with_aiokafka(part), options.times)
        print(f"{'aiokafka MemoryRecords, CRC':34} {their_count / theirs / 1e6:8.2f} M records/s")
        print(f"ratio {(count / seconds) / (their_count / theirs):.1f}")


if __name__ == "__main__":
    main()
