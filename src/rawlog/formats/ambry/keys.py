"""Blob ids: what is between a message's header and its records, and how two of them compare.

Byte-different keys may be one blob. `order` gives bytes that are equal exactly for keys that are equal for Ambry, and sort as
Ambry sorts them (BlobId.compareTo).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import uuid
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.formats.ambry.kernels import messages as kernels
from rawlog.formats.ambry.layouts import (
    DATA_TYPES,
    ID_TYPES,
    KEY_V6,
    KEYS,
    NONE,
    PARTITION_VERSION,
    KeyFlag,
)
from rawlog.kernels import byte_view
from rawlog.model.errors import CorruptError, OptionError
from rawlog.model.frames import Bytes
from rawlog.model.table import Table
from rawlog.model.text import java_text

GROUPS = {1: 1, 2: 2, 3: 3, 4: 3, 5: 3, 6: 4, 7: 4}
"""Keys of different groups are never the same blob."""


@dataclass(frozen=True, slots=True)
class Key:
    """The parts of a blob id."""

    raw: bytes
    version: int
    partition: int
    uuid: str
    flags: int = 0
    datacenter_id: int = NONE
    account_id: int = NONE
    container_id: int = NONE

    @property
    def id_type(self) -> str:
        has_type = self.version >= 3
        return ID_TYPES[self.flags & KeyFlag.ID_TYPE] if has_type else ID_TYPES[0]

    @property
    def is_encrypted(self) -> bool:
        return self.version >= 4 and bool(self.flags & KeyFlag.ENCRYPTED)

    @property
    def data_type(self) -> str | None:
        return DATA_TYPES[(self.flags & KeyFlag.DATA_TYPE) >> 3] if self.version >= 5 else None

    @property
    def text(self) -> str:
        return text_of(self.raw)


def parse(data: bytes, start: int = 0) -> Key:
    """The key that begins at `data[start]`. CorruptError if there is none."""
    version = int.from_bytes(data[start : start + 2], "big", signed=True)
    layout = KEYS.get(version)
    if layout is None or len(data) - start < layout.size:
        raise CorruptError(
            f"no blob id: version {version}, 1 to 7 expected", position=start, field="version", found=version
        )
    number = {
        field.name: int.from_bytes(
            data[start + layout.at(field.name) : start + layout.after(field.name)], "big", signed=field.type[-2] == "i"
        )
        for field in layout.fields
        if field.name != "uuid"
    }
    if number["partition_version"] != PARTITION_VERSION:
        partition_version = number["partition_version"]
        raise CorruptError(
            f"partition version {partition_version}, 1 expected",
            position=start,
            field="partition_version",
            found=partition_version,
        )
    flags = number.get("flags", 0)
    if version >= 3 and flags & KeyFlag.ID_TYPE >= len(ID_TYPES):
        raise CorruptError(
            f"id type {flags & KeyFlag.ID_TYPE}, 0 or 1 expected", position=start, field="flags", found=flags
        )
    if version >= 5 and (flags & KeyFlag.DATA_TYPE) >> 3 >= len(DATA_TYPES):
        raise CorruptError("data type 3, 0 to 2 expected", position=start, field="flags", found=flags)
    stop = start + layout.size
    if version >= 6:
        name = str(uuid.UUID(bytes=bytes(data[start + layout.at("uuid") : stop])))
    else:
        size = number["uuid_size"]
        if size < 0 or len(data) - stop < size:
            raise CorruptError(f"uuid of {size} bytes", position=start, field="uuid_size", found=size)
        name = java_text(bytes(data[stop : stop + size]))
        stop += size
    return Key(
        bytes(data[start:stop]),
        version,
        number["partition"],
        name,
        flags,
        number.get("datacenter_id", NONE),
        number.get("account_id", NONE),
        number.get("container_id", NONE),
    )


def make(
    version: int,
    partition: int,
    name: str,
    *,
    flags: int = 0,
    datacenter_id: int = NONE,
    account_id: int = NONE,
    container_id: int = NONE,
) -> bytes:
    """The bytes of a blob id. OptionError for a version that does not exist or text that is not a uuid."""
    if version not in KEYS:
        raise OptionError(f"blob id version {version}: 1 to 7 expected")
    out = version.to_bytes(2, "big")
    if version > 1:
        out += bytes([flags]) + datacenter_id.to_bytes(1, "big", signed=True)
        out += account_id.to_bytes(2, "big", signed=True) + container_id.to_bytes(2, "big", signed=True)
    out += PARTITION_VERSION.to_bytes(2, "big") + partition.to_bytes(8, "big", signed=True)
    if version >= 6:
        try:
            return out + uuid.UUID(name).bytes
        except ValueError:
            raise OptionError(f"{name!r} is not a UUID; a blob id of version {version} holds only a UUID") from None
    text = name.encode()
    return out + len(text).to_bytes(4, "big") + text


def text_of(raw: bytes) -> str:
    """The text form of a key: base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def from_text(text: str) -> bytes:
    """The key of a text form. OptionError for other text."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
        key = parse(raw)
    except (binascii.Error, ValueError, CorruptError):
        raise OptionError(f"blob id {text!r}: base64 of a key of version 1 to 7 expected") from None
    if len(key.raw) != len(raw):
        raise OptionError(f"blob id {text!r}: {len(raw) - len(key.raw)} bytes too many")
    return raw


@dataclass(frozen=True, slots=True)
class Identities:
    """The identity of each key: three numbers, equal exactly where Ambry takes the keys for equal.

    Those of uuids sort as Ambry sorts keys; for odd keys (`is_odd`) a digest of their order is used, and only `order` sorts them.
    """

    group: NDArray[np.int8]
    high: NDArray[np.int64]
    low: NDArray[np.int64]

    @property
    def is_odd(self) -> NDArray[np.bool_]:
        return self.group > max(GROUPS.values())

    def sorted(self, *after: NDArray[Any]) -> NDArray[np.int64]:
        """Row numbers by identity, then by `after`, then as they came."""
        return np.lexsort((*reversed(after), self.low, self.high, self.group))

    def begins(self, order: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the rows in `order` are of another blob than the one before."""
        result = np.ones(order.size, np.bool_)
        if order.size:
            group, high, low = self.group[order], self.high[order], self.low[order]
            result[1:] = (np.diff(group) != 0) | (high[1:] != high[:-1]) | (low[1:] != low[:-1])
        return result

    def numbers(self) -> NDArray[np.int64]:
        """A number for each row, the same for rows of one blob."""
        order = self.sorted()
        numbers = np.empty(order.size, np.int64)
        numbers[order] = np.cumsum(self.begins(order)) - 1
        return numbers

    def take(self, rows: Any) -> Identities:
        return Identities(self.group[rows], self.high[rows], self.low[rows])

    def equal(self, other: Identities) -> NDArray[np.bool_]:
        """Where two lists of one length name the same blob."""
        same: NDArray[np.bool_] = (self.group == other.group) & (self.high == other.high) & (self.low == other.low)
        return same

    @property
    def tuples(self) -> list[tuple[int, int, int]]:
        """The same as tuples, to look them up."""
        return list(zip(self.group.tolist(), self.high.tolist(), self.low.tolist(), strict=True))

    def __len__(self) -> int:
        return int(self.group.size)


def identities(data: Bytes, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> Identities:
    """Which blob each key in `data` is of; the keys must have been parsed or scanned."""
    data = byte_view(data)
    starts, sizes = np.ascontiguousarray(starts, np.int64), np.ascontiguousarray(sizes, np.int64)
    result = Identities(np.empty(starts.size, np.int8), *(np.empty(starts.size, np.int64) for _ in range(2)))
    if kernels.identify(data, starts, sizes, result.group, result.high, result.low):
        for row in np.flatnonzero(result.group == kernels.ODD).tolist():
            at = int(starts[row])
            raw = data[at : at + int(sizes[row])].tobytes()
            digest = hashlib.blake2b(order(raw), digest_size=16).digest()
            result.group[row] = max(GROUPS.values()) + GROUPS[raw[1]]
            result.high[row] = int.from_bytes(digest[:8], "big", signed=True)
            result.low[row] = int.from_bytes(digest[8:], "big", signed=True)
    return result


def identity_of(raw: bytes) -> tuple[int, int, int]:
    """Which blob one key is of."""
    return identities(np.frombuffer(raw, np.uint8), np.zeros(1, np.int64), np.full(1, len(raw), np.int64)).tuples[0]


_FLIP = 0x80  # the sign of a signed number, so that it sorts as bytes do
_HIGH, _LOW = KEY_V6.at("uuid"), KEY_V6.at("uuid") + 8


def order(raw: bytes) -> bytes:
    """Bytes that sort, and are equal, as Ambry compares blob ids. The key must have been parsed or scanned."""
    group = GROUPS[raw[1]]
    if group == 4:
        return bytes([group]) + _signed(raw[_HIGH:_LOW]) + _signed(raw[_LOW:])
    name = _sortable(uuid_bytes(raw))
    if group == 3:
        return bytes([group]) + name
    layout = KEYS[raw[1]]
    fields = ("datacenter_id", "account_id", "container_id", "partition") if group == 2 else ("partition",)
    return bytes([group]) + b"".join(_signed(raw[layout.at(field) : layout.after(field)]) for field in fields) + name


def _signed(number: bytes) -> bytes:
    return bytes([number[0] ^ _FLIP]) + number[1:]


def _sortable(text: bytes) -> bytes:
    """A uuid text that sorts by UTF-16 code units, like Java's strings."""
    return java_text(text).encode("utf-16-be")


def uuid_bytes(raw: bytes) -> bytes:
    """The bytes of the uuid alone, which blooms may be made of."""
    version = raw[1]
    return raw[_HIGH:] if version >= 6 else raw[KEYS[version].size :]


def uuid_spans(
    data: Bytes, starts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the uuid alone is in each key, and its size."""
    before = _BEFORE_UUID[data[starts + 1]]
    return starts + before, sizes - before


#: Bytes before a key's uuid, by the key's version.
_BEFORE_UUID = np.zeros(256, np.int64)
_BEFORE_UUID[list(KEYS)] = [KEYS[version].at("uuid") if version >= 6 else KEYS[version].size for version in KEYS]


# Blobs found by their id, in every table that has it -----------------------------------------------------------------------


def id_columns(table: Table, what: str) -> tuple[str, ...]:
    """The columns with the ids of a table's rows; keys are compared as everywhere."""
    if what == "key":
        return ()
    return next(((name,) for name in ("key", "blob_id") if name in table.names), ())


def rows_by_id(batch: pa.RecordBatch, id: str) -> pa.Array:
    """Which rows are of a blob; none if the text is not a blob id."""
    try:
        raw = from_text(id)
    except OptionError:  # perhaps it is an id of another system that is at the same place
        return pa.repeat(False, batch.num_rows)
    import pyarrow.compute as pc

    if "key" in batch.schema.names:
        matches = pc.equal(batch.column("key"), pa.scalar(raw, pa.binary()))
    else:
        matches = pc.equal(batch.column("blob_id"), id.rstrip("="))
    return pc.fill_null(matches, False)
