"""`config/*.json`: fastjson's text, which is not strict JSON, read as plain values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rawlog.errors import CorruptError, DataError
from rawlog.format import File
from rawlog.formats.rocketmq.paths import parts
from rawlog.frames import Bytes, Frames
from rawlog.status import Status
from rawlog.storage import Source

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|(?<=[{,])(\s*)(-?\d+)(\s*):')
LARGEST = 256 << 20


def parse(raw: bytes) -> Any:
    """The value of a config file; keys that are bare numbers become text. CorruptError if it is none."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptError(f"not UTF-8: {error.reason}", position=error.start) from None
    quoted = _TOKEN.sub(lambda found: found[0] if found[2] is None else f'{found[1]}"{found[2]}"{found[3]}:', text)
    try:
        return json.loads(quoted)
    except (ValueError, RecursionError) as error:
        position = getattr(error, "pos", 0) - (len(quoted) - len(text) if getattr(error, "pos", 0) else 0)
        raise CorruptError(f"not JSON: {str(error).partition(':')[0]}", position=max(0, position)) from None


def scan(data: Bytes, kind: int) -> Frames:
    """The whole file as one frame."""
    none = np.empty(0, np.int64)
    if not data.size:
        return Frames(data, none, none, 0, Status.OK, kind=kind)
    try:
        parse(bytes(data))
    except DataError as error:
        cut = "Unterminated" in error.message or (error.position or 0) >= data.size - 4
        status = Status.PADDING if not data.any() else Status.TRUNCATED if cut else Status.BAD_VALUE
        return Frames(data, none, none, 0, status, kind=kind)
    return Frames(data, np.zeros(1, np.int64), np.full(1, data.size, np.int64), int(data.size), Status.OK, kind=kind)


def fault(frames: Frames) -> DataError:
    """Why the text is no JSON."""
    try:
        parse(bytes(frames.data))
    except DataError as error:
        error.position = frames.reached_in_file
        return error
    return CorruptError("not JSON", position=frames.reached_in_file)


def load(files: Iterable[File], name: str) -> list[tuple[File, dict[str, Any]]]:
    """The files of that name, parsed. A broker takes the `.bak` where the file is missing or cannot be parsed, and so does this.

    Raises CorruptError if neither can be.
    """
    found: dict[str, list[File]] = {}
    for file in files:
        if (
            file.format == "rocketmq.config"
            and parts(file.path)[0].removesuffix(".bak") == name
            and file.problem is None
        ):
            found.setdefault(str(file.place.group), []).append(file)
    loaded = []
    for group in found.values():
        group.sort(key=lambda file: file.place.state is not None)
        loaded.append(_first_readable(group))
    return loaded


def _first_readable(group: Sequence[File]) -> tuple[File, dict[str, Any]]:
    problem: DataError | None = None
    for file in group:
        try:
            with Source(file.path) as source:
                value = parse(source.read(0, min(source.size, LARGEST)))
            if isinstance(value, dict):
                return file, value
            raise CorruptError("not a JSON object", position=0)
        except DataError as error:
            problem = problem or error.at(path=file.path, format="rocketmq.config")
    assert problem is not None
    raise problem
