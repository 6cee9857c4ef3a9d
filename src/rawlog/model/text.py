"""Text for people and from people: times, patterns, counts, safe and small HTML."""

from __future__ import annotations

import base64
import codecs
import fnmatch
import json
import re
import time
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

from rawlog.model.errors import OptionError, unknown

# ----------------------------------------------------------------------------------------------------------------------
# Times as users write them.


_RELATIVE = re.compile(r"^-([0-9]{1,25}(?:\.[0-9]{1,25})?)(ms|s|m|h|d|w)$")
_SPAN = re.compile(r"([+-]?)([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h|d|w)")
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h|d|w)")
_UNITS = {"ms": 10**3, "s": 10**6, "m": 60 * 10**6, "h": 3600 * 10**6, "d": 86400 * 10**6, "w": 7 * 86400 * 10**6}


def parse_time(text: str | int | datetime, now: float | None = None, name: str = "time") -> int:
    """Microseconds of a time: ISO 8601 (UTC unless it says otherwise), epoch milliseconds, or `-2h` before now.

    OptionError for anything else, with the name of the option.
    """
    if isinstance(text, datetime):
        moment = text if text.tzinfo else text.replace(tzinfo=UTC)
        return _microseconds(moment)
    text = str(text).strip()
    if match := _RELATIVE.match(text):
        return int((time.time() if now is None else now) * 10**6 - float(match.group(1)) * _UNITS[match.group(2)])
    if re.fullmatch(r"-?[0-9]{1,25}", text) and not re.fullmatch(r"[0-9]{4}", text):
        return int(text) * 1000
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(
            f"{name} {text!r}: ISO 8601 (2024-09-11T09:12:23Z), epoch milliseconds, or an age such as -2h expected"
        ) from None
    return _microseconds(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def parse_now(text: str | None) -> int:
    """Milliseconds of an option `now`: a number, or a time that `parse_time` takes; the clock if there is none."""
    text = "" if text is None else str(text).strip()
    if not text:
        return int(time.time() * 1000)
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else parse_time(text, name="now") // 1000


def parse_span(text: str) -> int:
    """Microseconds of a span of time with its sign: `-30d`, `+2h`, `500ms`. OptionError for anything else."""
    parsed = _SPAN.fullmatch(text.strip())
    if parsed is None:
        raise OptionError(f"span of time {text!r}: such as -30d, 2h or 500ms expected")
    return int(float(parsed[2]) * _UNITS[parsed[3]]) * (-1 if parsed[1] == "-" else 1)


def parse_duration(text: str | float) -> float:
    """Seconds of a duration: `30`, `30s`, `5m`, `1h30m`, `7d`. OptionError for anything else."""
    if isinstance(text, (int, float)):
        return float(text)
    if re.fullmatch(r"[0-9]{1,18}(?:\.[0-9]{1,9})?", text):
        return float(text)
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise OptionError(f"duration {text!r}: such as 30s, 5m, 1h30m or 7d expected")
    return float(sum(float(number) * _UNITS[unit] for number, unit in parts)) / 10**6


def parse_size(text: str) -> int:
    """Bytes of a size: `4096`, `64M`, `1GiB` (powers of 1024). OptionError for anything else."""
    parsed = _SIZE.fullmatch(text.strip())
    if parsed is None:
        raise OptionError(f"size {text!r}: such as 64M or 1GiB expected")
    return int(float(parsed[1]) * 1024 ** _POWERS[parsed[2].lower()])


def _microseconds(moment: datetime) -> int:
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86400 + delta.seconds) * 10**6 + delta.microseconds


# ----------------------------------------------------------------------------------------------------------------------
# Names that users choose by: literal ones and patterns.


GLOB = frozenset("*?[")


def is_glob(name: str) -> bool:
    """Whether a name is a pattern that may match several names or none."""
    return not GLOB.isdisjoint(name)


def matches(name: str | None, patterns: Collection[str]) -> bool:
    """Whether a name is one of these, or matches one of these patterns; without patterns any name is."""
    return not patterns or (name is not None and any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns))


def missing_topics(names: Iterable[str], topics: Collection[str]) -> Iterator[OptionError | str]:
    """Names and patterns that match no known topic: an error with the nearest name, or a note."""
    for name in names:
        if any(matches(topic, (name,)) for topic in topics):
            continue
        if is_glob(name):
            yield f"--topic {name}: no topic matches"
        elif topics:
            yield unknown("topic", name, topics).advise("rawlog ls PATH lists the topics; a name with * may match none")
        else:
            yield OptionError(f"unknown topic {name!r}: there are no topics here").advise("leave --topic out")


# ----------------------------------------------------------------------------------------------------------------------
# Text for people and machines: JSON, and characters that must not reach a terminal as they are. Needs nothing but Python.


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
    return text.translate(_ESCAPES)


class _Escapes(dict[int, str]):
    """What is shown of a character, by its number. Each is looked up once: a text may have millions of them."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        self[code] = shown = _escape(character) if _UNPRINTABLE.match(character) else character
        return shown


_ESCAPES = _Escapes()


def _escape(character: str) -> str:
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
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


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


def whole_number(text: str) -> int | None:
    """The number that a text of digits is; None for any other text, and for more digits than a number of 64 bits has."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 19 else None


def missing_text(first: int, last: int, *, counts: bool = False) -> str:
    """Offsets that are missing, the last one included; with `counts` how many they are."""
    verb, count = ("is", "") if first == last else ("are", f", {last - first + 1:,} in all" if counts else "")
    return f"{offset_range(first, last + 1)} {verb} missing{count}"


def width_of(text: str) -> int:
    """The number of cells that a terminal uses for a text."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.combining(character) != 0 for character in text)


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """A sentence in lines of at most `width` cells, `indent` before all but the first. A longer word, such as a path, stays whole."""
    if width_of(text) <= width:
        return [text]
    lines, line = [], ""
    for spaces, word in re.findall(r"( *)([^ ]+)", text):
        if line.strip() and width_of(line + spaces + word) > width:
            lines.append(line)
            line = indent + word
        else:
            line += spaces + word
    return [*lines, line]


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


def _replace_malformed(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    data, start, end = error.object, error.start, error.end
    if data[start] == 0xED and start + 1 < len(data) and 0xA0 <= data[start + 1] <= 0xBF:
        # An encoded surrogate is one malformed character to Java, and one for each byte to Python.
        end = start + 2 + (start + 2 < len(data) and 0x80 <= data[start + 2] <= 0xBF)
    return "\ufffd", end


codecs.register_error("rawlog.java", _replace_malformed)


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


# ----------------------------------------------------------------------------------------------------------------------
# Small HTML tables, for notebooks: `_repr_html_` of what users hold. All text from files is escaped.


#: So many rows are shown in a notebook, and so many characters of one value.
ROWS, CHARACTERS = 20, 80


#: The look of rawlog's pages, in the colours of the notebook where it has some.
_STYLE = """
.rawlog{--line:var(--jp-border-color2,#dde2e8);--soft:var(--jp-ui-font-color2,#535e6b);font:13.5px/1.5 system-ui,sans-serif;max-width:100%}
.rawlog .scroll{overflow:auto;max-height:420px;border:1px solid var(--line);border-radius:8px}
.rawlog table{border-collapse:collapse;margin:0;width:100%;font-size:13px}
.rawlog th,.rawlog td{text-align:left;vertical-align:top;padding:4px 12px;border-bottom:1px solid var(--line);max-width:60ch}
.rawlog td{font-variant-numeric:tabular-nums;overflow-wrap:break-word;min-width:8ch}
.rawlog th{color:var(--soft);font-weight:600;white-space:nowrap}
.rawlog td.n,.rawlog th.n{text-align:right;white-space:nowrap}
.rawlog td.t{white-space:nowrap}
.rawlog .null{color:var(--soft);font-style:italic}
.rawlog .bad,.rawlog .warn{border-radius:999px;padding:0 9px;font-weight:600}
.rawlog .bad{background:#fce6e4;color:#a8201a}.rawlog .warn{background:#fcf0d6;color:#7d4b00}
.rawlog p{margin:4px 0 8px;color:var(--soft)}
"""
_TONES = {"error": "bad", "warning": "warn", "lost": "bad", "dropped": "warn"}


def html_table(
    names: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "", *, shows_null: bool = False
) -> str:
    """A table with a line of names, and a caption above it. Numbers are aligned at the right; `shows_null` is for data."""
    table_rows = [list(row) for row in rows]
    kinds = [_kind([row[at] for row in table_rows if at < len(row)]) for at in range(len(names))]
    heads = "".join(f"<th{kind}>{_text(name)}</th>" for name, kind in zip(names, kinds, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td{kind}>{_cell(value, shows_null)}</td>' for value, kind in zip(row, kinds, strict=False))}</tr>"
        for row in table_rows
    )
    head = html_note(caption) if caption else ""
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="rawlog"><style>{_STYLE}</style>{head}<div class="scroll">{table}</div></div>'


def _kind(column: Sequence[Any]) -> str:
    there = [value for value in column if value is not None]
    if there and all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in there):
        return ' class="n"'
    return ' class="t"' if there and all(isinstance(value, datetime) for value in there) else ""


def _cell(value: Any, shows_null: bool) -> str:
    """A value in a table. In data, no value and an empty one differ."""
    if value is None:
        return '<span class="null">null</span>' if shows_null else ""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    tone = _TONES.get(str(value)) if isinstance(value, Enum) else None
    return _text(value) if tone is None else f'<span class="{tone}">{_text(value)}</span>'


def html_note(text: str) -> str:
    """A line of text."""
    from html import escape

    return f"<p>{escape(printable(text))}</p>"


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        text = value.isoformat()
    else:
        text = printable(value) if isinstance(value, (str, bytes)) else printable(to_json(value))
    from html import escape

    return escape(text if len(text) <= CHARACTERS else text[: CHARACTERS - 1] + "…")
