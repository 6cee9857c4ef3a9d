"""`config/*.json`: fastjson's text, which is not strict JSON, read as plain values.

A file may be JSON and still not what a broker writes there: a list where a table belongs, text for a number. `check_tables` keeps what
can be read and says what is wrong with the rest.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rawlog.formats.rocketmq.paths import parts
from rawlog.io.storage import Source
from rawlog.model.errors import CorruptError, DataError
from rawlog.model.format import File
from rawlog.model.frames import Bytes, Frames
from rawlog.model.status import Status
from rawlog.model.text import printable

if TYPE_CHECKING:
    from rawlog.model.explain import Node

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|(?<=[{,])(\s*)(-?\d+)(\s*):')
LARGEST = 256 << 20
DEEPEST = 64
"""Levels of nesting; a broker's own files have fewer than ten."""
MOST_PROBLEMS = 100


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A settings file: its readable part, and the problems with the rest, each with its place.

    A broker refuses a file with `problems`. Names that are `repeated` in one table are only ambiguous.
    """

    file: File
    value: dict[str, Any]
    problems: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()

    @property
    def is_refused(self) -> bool:
        return bool(self.problems)


def parse(raw: bytes) -> Any:
    """The value of a config file; keys that are bare numbers become text. CorruptError if it is not JSON."""
    return _parse(raw, [])


def _parse(raw: bytes, twice: list[str]) -> Any:
    """Parse fastjson's text; names that occur twice in an object are added to `twice`. As in a broker, the last one counts."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptError(f"not UTF-8: {error.reason}", position=error.start) from None
    quoted = _TOKEN.sub(lambda match: match[0] if match[2] is None else f'{match[1]}"{match[2]}"{match[3]}:', text)

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) < len(pairs):
            seen: set[str] = set()
            twice.extend(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        return table

    try:
        value = json.loads(quoted, object_pairs_hook=collect, parse_constant=_constant)
    except (ValueError, RecursionError) as error:
        position = getattr(error, "pos", 0) - (len(quoted) - len(text) if getattr(error, "pos", 0) else 0)
        raise CorruptError(f"not JSON: {str(error).partition(':')[0]}", position=max(0, position)) from None
    if _is_deep(value):
        raise CorruptError(f"nested more than {DEEPEST} levels deep", position=0)
    return value


def _constant(name: str) -> None:
    """`NaN` is null to fastjson; it does not know the others of Python's."""
    if name != "NaN":
        raise ValueError(f"{name} is not a value")


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer if isinstance(outer, list) else ())
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return False
    return True


# ------------------------------------------------------------------ shapes


class _ShapeError(ValueError):
    """A value of another kind than belongs there."""


Check = Callable[[Any, str, list[str]], Any]
"""(value, place, problems) -> the value as a broker takes it; _Wrong if it takes none. What is left out of it is added to problems."""


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return "a table" if isinstance(value, dict) else "a list"
    text = json.dumps(value) if not isinstance(value, int) or abs(value) < 1 << 200 else "a number of many digits"
    return printable(text if len(text) <= 60 else f"{text[:57]}...")


def _whole(bits: int) -> Check:
    """Check a whole number; like fastjson it accepts text, a fraction, or true for 1, and cuts to `bits`."""

    def check(value: Any, place: str, problems: list[str]) -> int:
        number = value
        if (isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,20}", value)) or (
            isinstance(value, float) and math.isfinite(value)
        ):
            number = int(value)
        if not isinstance(number, int) or not -(1 << 63) <= number < 1 << 63:
            raise _ShapeError(f"{_shown(value)} is not a whole number")
        return (int(number) + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)

    return check


def _truth(value: Any, place: str, problems: list[str]) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if isinstance(value, int):
        return value == 1
    raise _ShapeError(f"{_shown(value)} is neither true nor false")


def _text(value: Any, place: str, problems: list[str]) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _table(item: Check, key: Callable[[str], bool] | None = None) -> Check:
    """A table of such items, by name; no item may be null."""

    def check(value: Any, place: str, problems: list[str]) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _ShapeError(f"{_shown(value)} is not a table")
        kept = {}
        for name, entry in value.items():
            where = f"{place}.{printable(name)}"
            if key is not None and not key(name):
                problems.append(f"{where}: the name is not a whole number of 32 bits")
                continue
            try:
                kept[name] = item(entry, where, problems)
            except _ShapeError as error:
                problems.append(f"{where}: {error}")
        return kept

    return check


def _record(**fields: Check) -> Check:
    """A table of known fields. One that is null or missing has its default; others are left as they are."""

    def check(value: Any, place: str, problems: list[str]) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _ShapeError(f"{_shown(value)} is not a table")
        kept = {}
        for name, entry in value.items():
            try:
                field_check = fields.get(name)
                kept[name] = (
                    entry if field_check is None or entry is None else field_check(entry, f"{place}.{name}", problems)
                )
            except _ShapeError as error:
                problems.append(f"{place}.{printable(name)}: {error}")
        return kept

    return check


def _is_number(name: str) -> bool:
    return re.fullmatch(r"-?[0-9]{1,10}", name) is not None and -(1 << 31) <= int(name) < 1 << 31


_INT, _LONG = _whole(32), _whole(64)
_OFFSETS = _table(_LONG, _is_number)
_TOPIC = _record(
    topicName=_text,
    readQueueNums=_INT,
    writeQueueNums=_INT,
    perm=_INT,
    topicSysFlag=_INT,
    order=_truth,
    topicFilterType=_text,
    attributes=_table(_text),
)
_GROUP = _record(
    groupName=_text,
    consumeEnable=_truth,
    consumeFromMinEnable=_truth,
    consumeBroadcastEnable=_truth,
    consumeMessageOrderly=_truth,
    notifyConsumerIdsChangedEnable=_truth,
    retryQueueNums=_INT,
    retryMaxTimes=_INT,
    consumeTimeoutMinute=_INT,
    groupSysFlag=_INT,
    brokerId=_LONG,
    whichBrokerWhenConsumeSlowly=_LONG,
    attributes=_table(_text),
)
_VERSION = _record(counter=_LONG, timestamp=_LONG, stateVersion=_LONG)
SHAPES: dict[str, dict[str, Check]] = {
    "topics.json": {"topicConfigTable": _table(_TOPIC)},
    "subscriptionGroup.json": {
        "subscriptionGroupTable": _table(_GROUP),
        "forbiddenTable": _table(_table(_INT)),
    },
    "consumerOffset.json": {"offsetTable": _table(_OFFSETS)},
    "lmqConsumerOffset.json": {"offsetTable": _table(_OFFSETS), "lmqOffsetTable": _table(_LONG)},
    "delayOffset.json": {"offsetTable": _OFFSETS},
}
"""The tables of the files that rawlog reads, by name."""


def check_tables(name: str, value: Any) -> tuple[dict[str, Any], list[str]]:
    """The part of a settings file that a broker can read, and the problems with the rest."""
    if not isinstance(value, dict):
        return {}, [f"{_shown(value)} is not a table"]
    kept, problems = dict(value), list[str]()
    for table, check in (SHAPES.get(name, {}) | {"dataVersion": _VERSION}).items():
        if table in value and not (value[table] is None and table == "dataVersion"):
            try:
                kept[table] = check(value[table], table, problems)
            except _ShapeError as error:
                problems.append(f"{table}: {error}")
                del kept[table]
    return kept, problems


def name_of(file: File) -> str:
    """Which file of settings one is, or is the copy of."""
    return parts(file.path)[0].removesuffix(".bak")


def read(file: File) -> LoadedConfig:
    """A file of settings. CorruptError if it is not JSON."""
    twice: list[str] = []
    kept, problems = check_tables(name_of(file), _value(file, twice))
    repeated = [f"{_shown(name)} occurs twice in one table; the last one counts" for name in dict.fromkeys(twice)]
    return LoadedConfig(file, kept, tuple(problems[:MOST_PROBLEMS]), tuple(repeated[:MOST_PROBLEMS]))


def raw_tables(file: File) -> dict[str, Any]:
    """The tables of a file as they are, whatever their shape. CorruptError if it is not JSON."""
    value = _value(file, [])
    return value if isinstance(value, dict) else {}


def _value(file: File, twice: list[str]) -> Any:
    try:
        with Source(file.path) as source:
            return _parse(source.read(0, min(source.size, LARGEST)), twice)
    except DataError as error:
        raise error.at(path=file.path, format="rocketmq.config") from None


# ------------------------------------------------------------------ the format


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


def explain(frames: Frames, file: File) -> list[Node]:
    """The values, by their path."""
    from rawlog.model.explain import json_node

    raw = bytes(frames.data[int(frames.starts[0]) : int(frames.stops[0])])
    return [json_node(parse(raw), frames.base, len(raw), "config")]


def load(files: Iterable[File], name: str) -> list[tuple[File, dict[str, Any]]]:
    """The parsed files of a name, one per store. Like a broker it takes the `.bak` if the file is missing or refused; if both are refused,
    the readable part of the file.

    Raises CorruptError if neither is JSON.
    """
    by_store: dict[str, list[File]] = {}
    for file in files:
        if file.format == "rocketmq.config" and name_of(file) == name and file.problem is None:
            by_store.setdefault(str(file.place.group), []).append(file)
    loaded = []
    for group in by_store.values():
        group.sort(key=lambda file: file.place.state is not None)
        best = best_of(group)
        loaded.append((best.file, best.value))
    return loaded


def best_of(group: Sequence[File]) -> LoadedConfig:
    """The first of a file and its copies that a broker accepts, else the first that is JSON. CorruptError if none is."""
    problem: DataError | None = None
    refused: LoadedConfig | None = None
    for file in group:
        try:
            loaded = read(file)
        except DataError as error:
            problem = problem or error
            continue
        if not loaded.is_refused:
            return loaded
        refused = refused or loaded
    if refused is None:
        assert problem is not None
        raise problem
    return refused
