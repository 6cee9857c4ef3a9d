"""Text for people and machines: JSON, and characters that must not reach a terminal as they are. Needs nothing but Python."""

from __future__ import annotations

import base64
import codecs
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

#: Characters that steer a terminal or the direction of text, all but those JSON escapes anyway. `kernels.json.is_hidden` is its twin.
_HIDDEN = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def to_json(value: Any) -> str:
    """A value as one line of JSON: compact, text as it is, except control and direction characters, which are escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_default)
    return safe_json(_SURROGATES.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def safe_json(text: str) -> str:
    """A JSON text whose strings have control and direction characters as escapes: the same values."""
    return text if text.isascii() and "\x7f" not in text else _HIDDEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


_SURROGATES = re.compile("[\ud800-\udfff]")


def _default(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return binary_value(bytes(value))
    return str(value)


def binary_value(value: bytes) -> str | dict[str, str]:
    """What JSON shows of bytes: their text if they are UTF-8, else an object with their base64."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def escaped(value: bytes) -> str:
    """Bytes as text that tells every one of them: printable ASCII, a doubled backslash, all else `\\xNN`."""
    return "".join(
        "\\\\" if byte == 0x5C else chr(byte) if 0x20 <= byte <= 0x7E else f"\\x{byte:02x}" for byte in value
    )


def formed(value: bytes, form: str) -> str:
    """Bytes as text in one form: `base64`, `hex` or `escape`."""
    if form == "base64":
        return base64.b64encode(value).decode()
    return value.hex() if form == "hex" else escaped(value)


def printable(value: str | bytes) -> str:
    """Text that is safe to show: control and direction characters and bytes that are not UTF-8 become escapes."""
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
    if text.isascii() and text.isprintable():
        return text
    return _UNPRINTABLE.sub(_visible, text)


def _visible(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a file name that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def valid_text(text: str) -> str:
    """Text that UTF-8 and Arrow can hold: bytes of a file name that are not UTF-8 become `\\xNN`."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def text_of(value: bytes) -> str | None:
    """Bytes as text; None if they are not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def is_text(text: str) -> bool:
    """Whether a text is Unicode: an argument of the command line may have bytes that are not."""
    return text.isascii() or not any("\ud800" <= one <= "\udfff" for one in text)


def counted(count: int, what: str, plural: str | None = None) -> str:
    """A number of things: `1 file`, `2,000 files`, `2 entries` of `entry`, `2 keys`."""
    if count == 1:
        return f"1 {what}"
    if plural is None:
        if what[-1] == "y" and what[-2:-1] not in tuple("aeiou"):
            plural = f"{what[:-1]}ies"
        else:
            plural = f"{what}es" if what.endswith(("ch", "s", "x")) else f"{what}s"
    return f"{count:,} {plural}"


def offset_range(start: int | None, stop: int) -> str:
    """Offsets for people: both ends are in it, `offsets 5 to 9` or `offset 5`. Given half-open, as JSON and columns have it."""
    if start is None:
        return f"offsets up to {stop - 1:,}"
    if stop <= start:
        return f"no offsets from {start:,} on"
    return f"offset {start:,}" if stop - start == 1 else f"offsets {start:,} to {stop - 1:,}"


def size_text(size: int) -> str:
    """A number of bytes as a person reads it: `1.4 GB`."""
    if size < 1000:
        return f"{size} B"
    amount = float(size)
    for unit in ("kB", "MB", "GB", "TB", "PB"):
        amount /= 1000
        if amount < 999.5 or unit == "PB":
            return f"{amount:.1f} {unit}" if amount < 99.95 else f"{amount:.0f} {unit}"
    raise AssertionError


def java_text(raw: bytes) -> str:
    """Bytes as a Java client shows them: what is not UTF-8 becomes U+FFFD, as many as Java's own decoder makes."""
    return raw.decode("utf-8", "rawlog.java")


def _replaced(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    data, start, end = error.object, error.start, error.end
    if data[start] == 0xED and start + 1 < len(data) and 0xA0 <= data[start + 1] <= 0xBF:
        # An encoded surrogate is one malformed character to Java, and one for each byte to Python.
        end = start + 2 + (start + 2 < len(data) and 0x80 <= data[start + 2] <= 0xBF)
    return "\ufffd", end


codecs.register_error("rawlog.java", _replaced)


FIRST_DAY, LAST_DAY = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The times, in microseconds, of the years 1 to 9999, which are those of Python's calendar."""


def plain_time(microseconds: int) -> str:
    """ISO 8601 in UTC with three or six fraction digits; a year outside 0001 to 9999 with its sign and six digits."""
    era_us = 146_097 * 86_400 * 10**6  # 400 years, after which the calendar repeats
    era, rest = divmod(microseconds, era_us)
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=rest)
    year = moment.year + 400 * era
    years = f"{year:04}" if 1 <= year <= 9999 else f"{'+' if year >= 0 else '-'}{abs(year):06}"
    fraction = f"{moment.microsecond:06}"
    if fraction.endswith("000"):
        fraction = fraction[:3]
    return f"{years}-{moment:%m-%dT%H:%M:%S}.{fraction}Z"
