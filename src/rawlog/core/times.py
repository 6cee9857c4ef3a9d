"""Times as users write them."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

from rawlog.core.errors import OptionError

_RELATIVE = re.compile(r"^-([0-9]{1,25}(?:\.[0-9]{1,25})?)(ms|s|m|h|d|w)$")
_SPAN = re.compile(r"([+-]?)([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h|d|w)")
_UNITS = {"ms": 10**3, "s": 10**6, "m": 60 * 10**6, "h": 3600 * 10**6, "d": 86400 * 10**6, "w": 7 * 86400 * 10**6}


def parse_time(text: str | int | datetime, now: float | None = None) -> int:
    """Microseconds of a time: ISO 8601 (UTC unless it says otherwise), epoch milliseconds, or `-2h` before now.

    OptionError for anything else.
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
            f"time {text!r}: ISO 8601 (2024-09-11T09:12:23Z), epoch milliseconds, or an age such as -2h expected"
        ) from None
    return _microseconds(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def parse_span(text: str) -> int:
    """Microseconds of a span of time with its sign: `-30d`, `+2h`, `500ms`. OptionError for anything else."""
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise OptionError(f"span of time {text!r}: such as -30d, 2h or 500ms expected")
    return int(float(found[2]) * _UNITS[found[3]]) * (-1 if found[1] == "-" else 1)


def _microseconds(moment: datetime) -> int:
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86400 + delta.seconds) * 10**6 + delta.microseconds
