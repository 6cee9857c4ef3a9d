"""Values that are JSON texts: checked, and on one line."""

from __future__ import annotations

import json
from typing import Any

from rawlog.core.text import safe_json

_SPACES = bytes.maketrans(b"\r\n\t", b"   ")


def to_json(body: bytes) -> str:
    """A JSON text on one line, its numbers as they are written. ValueError if it is not JSON in UTF-8."""
    text = body.decode("utf-8")
    try:
        json.loads(text, parse_float=str, parse_int=str, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    # Inside strings these characters are escaped, so that all of them are white space between values.
    return safe_json(body.translate(_SPACES).decode("utf-8").strip())


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
