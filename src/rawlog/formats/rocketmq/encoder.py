"""Entries of a commit log from columns: lengths, checksums and places are computed, never taken from the caller."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.core.errors import EncodeError, OptionError
from rawlog.core.frames import Bytes
from rawlog.formats.rocketmq.kernels import encode as kernels
from rawlog.formats.rocketmq.kernels import entries as fields
from rawlog.formats.rocketmq.layouts import HOST_V4, HOST_V6, LARGEST_PROPERTIES, LARGEST_TOPIC_V1, SysFlag
from rawlog.formats.rocketmq.reader import Messages
from rawlog.kernels import byte_view, columns
from rawlog.kernels.gather import SLACK

LARGEST_TOPIC = 32767


@dataclass(slots=True)
class Entries:
    """Messages to be written: numbers (`kernels.N_…`) a row, hosts as 20 bytes each, and the three parts of any size."""

    numbers: NDArray[np.int64]
    born_hosts: NDArray[np.uint8]
    store_hosts: NDArray[np.uint8]
    bodies: pa.Array
    topics: pa.Array
    properties: pa.Array
    crc_property: bool = False
    moves: bool = False
    """Whether entries that were stored elsewhere get new addresses, and so new checksums of the whole where they have one."""

    def __len__(self) -> int:
        return int(self.numbers.shape[1])

    def slice(self, start: int, stop: int) -> Entries:
        return Entries(
            self.numbers[:, start:stop],
            self.born_hosts[start:stop],
            self.store_hosts[start:stop],
            self.bodies.slice(start, stop - start),
            self.topics.slice(start, stop - start),
            self.properties.slice(start, stop - start),
            self.crc_property,
            self.moves,
        )

    def sizes(self) -> NDArray[np.int64]:
        """Bytes that each entry takes. EncodeError for a topic or properties too long."""
        topics, properties = binary(self.topics)[0], binary(self.properties)[0]
        self.numbers[kernels.N_VERSION] = np.where(
            np.diff(topics) > LARGEST_TOPIC_V1, 2, np.maximum(1, self.numbers[kernels.N_VERSION])
        )
        most = LARGEST_PROPERTIES - (kernels.CRC_SIZE if self.crc_property else 0)
        for lengths, limit, what in (
            (np.diff(topics), LARGEST_TOPIC, "a topic"),
            (np.diff(properties), most, "properties"),
        ):
            bad = np.flatnonzero(lengths > limit)
            if bad.size:
                raise EncodeError(f"row {bad[0]:,}: {what} of {int(lengths[bad[0]]):,} bytes, at most {limit:,} fit")
        sizes = np.empty(len(self), np.int64)
        kernels.measure_entries(self.numbers, binary(self.bodies)[0], topics, properties, self.crc_property, sizes)
        return sizes

    def encode(self, sizes: NDArray[np.int64], addresses: NDArray[np.int64], start: int, stop: int) -> Bytes:
        """The bytes of the log from address `start` to `stop`, zero where no entry stands."""
        self.numbers[kernels.N_PHYSICAL] = addresses
        self.numbers[kernels.N_AT] = addresses - start
        out = np.zeros(stop - start + SLACK, np.uint8)
        kernels.encode_entries(
            self.numbers,
            self.born_hosts,
            self.store_hosts,
            *binary(self.bodies),
            *binary(self.topics),
            *binary(self.properties),
            self.crc_property,
            sizes,
            out,
        )
        if self.moves:
            kernels.renew_crcs(self.numbers, binary(self.properties)[0], sizes, out)
        return out[: stop - start]


def binary(array: pa.Array) -> tuple[NDArray[np.int32], Bytes]:
    """Offsets and bytes of a binary or string column without nulls."""
    assert not array.null_count
    _, offsets, values = array.buffers()
    if offsets is None or not len(array):
        return np.zeros(len(array) + 1, np.int32), byte_view(b"")
    ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    return ends, byte_view(values if values is not None else b"")


def from_messages(rows: Messages, *, moves: bool = False) -> Entries:
    """What was decoded, ready to be encoded again: bodies as stored, properties to the last separator."""
    numbers = np.zeros((kernels.NUMBERS, len(rows)), np.int64)
    for to, source in (
        (kernels.N_QUEUE_ID, fields.F_QUEUE_ID),
        (kernels.N_FLAG, fields.F_FLAG),
        (kernels.N_QUEUE_OFFSET, fields.F_QUEUE_OFFSET),
        (kernels.N_PHYSICAL, fields.F_PHYSICAL),
        (kernels.N_SYS_FLAG, fields.F_SYS_FLAG),
        (kernels.N_BORN_TIME, fields.F_BORN_TIME),
        (kernels.N_STORE_TIME, fields.F_STORE_TIME),
        (kernels.N_RECONSUME, fields.F_RECONSUME),
        (kernels.N_PREPARED, fields.F_PREPARED),
        (kernels.N_VERSION, fields.F_VERSION),
    ):
        numbers[to] = rows[source]
    return Entries(
        numbers,
        _hosts(rows, fields.F_BORN_HOST),
        _hosts(rows, fields.F_STORE_HOST),
        columns.spans(rows.data, rows[fields.F_BODY], rows[fields.F_BODY_SIZE]),
        columns.spans(rows.data, rows[fields.F_TOPIC], rows[fields.F_TOPIC_SIZE]),
        columns.spans(rows.data, rows[fields.F_PROPERTIES], rows[fields.F_PROPERTIES_SIZE]),
        moves=moves,
    )


def _hosts(rows: Messages, field: int) -> NDArray[np.uint8]:
    """Twenty bytes from each host's first on; IPv4 uses eight of them. A message goes on for longer than that behind both."""
    at = rows[field][:, None] + np.arange(HOST_V6.size)
    return np.ascontiguousarray(rows.data[np.minimum(at, rows.data.size - 1)])


def host_bytes(text: str) -> tuple[NDArray[np.uint8], bool]:
    """An `address:port` as twenty bytes, and whether it is IPv6. OptionError if it is none."""
    address, _, port = text.rpartition(":")
    try:
        parsed: Any = ipaddress.ip_address(address.strip("[]"))
        raw = parsed.packed + int(port).to_bytes(4, "big", signed=True)
    except (ValueError, OverflowError):
        raise OptionError(f"host {text!r}: address:port expected, such as 10.0.0.2:10911") from None
    assert len(raw) in (HOST_V4.size, HOST_V6.size)
    return np.frombuffer(raw.ljust(HOST_V6.size, b"\0"), np.uint8), parsed.version == 6


def host_flags(born_is_v6: bool, store_is_v6: bool) -> int:
    """The bits of the sysflag that tell the sizes of hosts."""
    return int(SysFlag.BORNHOST_V6) * born_is_v6 | int(SysFlag.STOREHOST_V6) * store_is_v6
