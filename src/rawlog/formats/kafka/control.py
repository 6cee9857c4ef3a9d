"""Control records: what a transaction marker, or another record of a broker's own, says of itself."""

from __future__ import annotations

from rawlog.core.errors import DataError
from rawlog.core.frames import Frames
from rawlog.formats.kafka.layouts import NONE
from rawlog.formats.kafka.reader import decode_columns, milliseconds


def read_marker(frames: Frames, index: int) -> tuple[int | None, int, int]:
    """The type, coordinator epoch and time (ms) of a control batch's first record; type None if it cannot be read."""
    one = frames.slice(index, index + 1)
    try:
        decoded = decode_columns(one.data, one.starts, one.stops, {"key", "value", "timestamp"}, limit=1 << 16)
    except DataError:
        return None, NONE, NONE
    if not decoded.count:
        return None, NONE, NONE
    value = decoded.arrays["value"][0].as_py() or b""
    epoch = int.from_bytes(value[2:6], "big", signed=True) if len(value) >= 6 else NONE
    timestamp = int(milliseconds(decoded.arrays["timestamp"])[0])
    return control_type(decoded.arrays["key"][0].as_py()), epoch, timestamp


def control_type(key: bytes | None) -> int | None:
    """The type that a control record's key names: int16 version, int16 type. None for a key too short, or of a version below 0."""
    if key is None or len(key) < 4 or key[0] & 0x80:
        return None
    return int.from_bytes(key[2:4], "big", signed=True)
