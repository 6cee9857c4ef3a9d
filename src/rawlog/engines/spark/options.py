"""The options of the `rawlog` source, parsed on the driver into a Request. Plans nothing, reads nothing but schemas.

Names and forms are Spark's own where Spark has the thing already: `startingOffsets`, `mode`, `pathGlobFilter` … Options that verbs have
too are declared in `reading/options.py`, with their name for Spark.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from rawlog import registry
from rawlog.engines.sql import bounds_of_condition
from rawlog.io.storage import is_remote, local_path
from rawlog.model.errors import OptionError, unknown
from rawlog.model.format import File
from rawlog.model.table import RECORDS, Table
from rawlog.model.text import parse_size, parse_time
from rawlog.model.verb import Kind, Parameter
from rawlog.reading.options import field_of, options_in
from rawlog.reading.select import Selection, parse_columns
from rawlog.reading.tree import open_tree
from rawlog.values.transform import Decode, parse_decode

#: What damage does. PERMISSIVE reads every sound row and passes over the rest, a file's own header included, with a warning in the
#: executor's log; DROPMALFORMED also drops files that cannot be read at all, which the others refuse.
MODES = {"FAILFAST": "raise", "PERMISSIVE": "skip", "DROPMALFORMED": "skip"}

EARLIEST, LATEST = -2, -1


@dataclass(frozen=True, slots=True)
class Offsets:
    """A bound in Kafka's offsets: one for every partition, or one each. EARLIEST and LATEST are numbers too."""

    common: int | None = None
    each: Mapping[tuple[str, int], int] = field(default_factory=dict)

    def of(self, file: File) -> int | None:
        """The bound that holds for a file, None for no bound."""
        topic, partition = file.place.topic, file.place.partition
        if topic is not None and partition is not None and (topic, partition) in self.each:
            return self.each[topic, partition]
        return self.common

    def __bool__(self) -> bool:
        return self.common is not None or bool(self.each)


@dataclass(frozen=True, slots=True)
class Request:
    """What a user asked of the source."""

    paths: tuple[str, ...]
    table: str = "records"
    selection: Selection = field(default_factory=Selection)
    starting: Offsets = field(default_factory=Offsets)
    ending: Offsets = field(default_factory=Offsets)
    mode: str = "FAILFAST"
    split_size: int | None = None
    glob: str | None = None
    max_bytes: int | None = None
    max_files: int | None = None
    max_records: int | None = None
    fail_on_data_loss: bool = True

    @property
    def whole_table(self) -> Table:
        """The table with all its columns."""
        return registry.table_named(self.table)

    @property
    def wanted(self) -> Table:
        """The table cut to the columns asked for."""
        return self.selection.wanted(self.whole_table)

    def selection_of(self, file: File) -> Selection:
        """The selection with the offsets that hold for one file's partition."""
        start, stop = self.starting.of(file), self.ending.of(file)
        changes = {
            "from_offset": start if start is not None and start >= 0 else None,
            "to_offset": stop if stop is not None and stop >= 0 else None,
        }
        return (
            self.selection.replace(**changes)
            if any(value is not None for value in changes.values())
            else self.selection
        )


def parse(options: Mapping[str, str]) -> Request:
    """The request that options make. OptionError for an unknown option, naming the nearest, or an impossible value."""
    known = {name.lower(): name for name in (*_PARSERS, *_APART, *_families_own())}
    given: dict[str, str] = {}
    for name, value in options.items():
        if name.lower() not in known:
            raise unknown("option", name, known.values())
        given[known[name.lower()]] = value
    fields: dict[str, Any] = {"paths": _paths(given)}
    selected: dict[str, Any] = {}
    for name, value in given.items():
        if name in _PARSERS:
            target, parser = _PARSERS[name]
            result = parser(name, value)
            if target in Selection.__dataclass_fields__:
                selected[target] = result
            else:
                fields[target] = result
    table = registry.table_named(fields.get("table", "records"))
    selected["errors"] = MODES[fields.get("mode", "FAILFAST")]
    selected |= _topics(given)
    own = {name: value for name, value in given.items() if name in _families_own()}
    if own:
        selected["options"] = {**selected.get("options", {}), **registry.reading_options(own)}
    selection = _decoding(Selection(**selected), fields["paths"], table, given)
    if "includeHeaders" in given and not _boolean("includeHeaders", given["includeHeaders"]) and "columns" not in given:
        names = selection.transformed(table).names
        selection = selection.replace(columns=tuple(name for name in names if name != "headers"))
    request = Request(**fields, selection=selection)
    request.selection.check(table)
    if (request.starting or request.ending) and table.offsets is None:
        raise OptionError(f"table {table.name} cannot be selected by an offset: its rows have none")
    return request


def bounded(request: Request) -> Request:
    """The request with what its `where` says of topics, partitions, offsets and times, so that only files and frames that can have such
    rows are read, as a statement in SQL does. The expression itself is still evaluated.
    """
    selection, table = request.selection, request.whole_table
    if selection.where is None:
        return request
    bounds = bounds_of_condition(selection.where, table)
    changes: dict[str, Any] = {}
    if bounds.topics is not None and not selection.topics and selection.topic_pattern is None:
        changes["topic_pattern"] = bounds.selection(Selection()).topic_pattern
    if bounds.partitions is not None and not selection.partitions:
        changes["partitions"] = tuple(sorted(bounds.partitions))
    for name, narrower in (("since", max), ("until", min)):
        given = [one for one in (getattr(selection, name), getattr(bounds, name)) if one is not None]
        if given:
            changes[name] = narrower(given)
    starting, ending = request.starting, request.ending
    if not starting and bounds.from_offset is not None and bounds.from_offset > 0:
        starting = Offsets(bounds.from_offset)
    if not ending and bounds.to_offset is not None and bounds.to_offset >= 0:
        ending = Offsets(bounds.to_offset)
    return replace(request, selection=selection.replace(**changes), starting=starting, ending=ending)


def _decoding(selection: Selection, paths: tuple[str, ...], table: Table, given: Mapping[str, str]) -> Selection:
    """The selection with what decodes its rows, if that is asked for: schemas are read here, once, for all tasks."""
    if "decode" not in given:
        if "schemas" in given:
            raise OptionError("option decode is missing: SIDE=HOW, such as value=auto")
        return selection
    if table.name != RECORDS.name:
        raise OptionError(f"option decode: only the table records is decoded, not {table.name}")
    source = given.get("schemas")
    asked = Decode(parse_decode(given["decode"]), source if source is None or "://" in source else absolute(source))
    return selection.replace(transforms=(asked.bound(open_tree(paths), selection),))


def _families_own() -> frozenset[str]:
    """The names of options that only some families have."""
    own = {name for family in registry.families() for name in family.options}
    return frozenset(own - _PARSERS.keys() - set(_APART))


def _paths(given: Mapping[str, str]) -> tuple[str, ...]:
    """The paths of `load(path)` or `load([path, …])`, absolute, since tasks may run elsewhere."""
    if "paths" in given:
        try:
            paths = json.loads(given["paths"])
        except ValueError:
            raise OptionError(f"option paths {given['paths']!r}: a JSON list of paths expected") from None
    else:
        paths = [given["path"]] if given.get("path") else []
    if not paths or not all(isinstance(path, str) and path for path in paths):
        raise OptionError("no path: load(path) or the option path says what to read")
    return tuple(absolute(path) for path in paths)


def absolute(path: str) -> str:
    """A path that means the same to every process; Hadoop's names of S3 are S3."""
    path = re.sub(r"^s3[an]://", "s3://", path)
    if is_remote(path) and "@" in path.split("://", 1)[1].split("/", 1)[0]:
        bare = re.sub(r"://[^/]*@", "://", path).partition("?")[0]
        raise OptionError(
            f"{bare}: credentials in a URL would appear in plans and logs; give them by the environment (AWS_…)"
        )
    return path if is_remote(path) else os.path.abspath(local_path(path))


def _topics(given: Mapping[str, str]) -> dict[str, Any]:
    asked = [name for name in ("topic", "subscribe", "subscribePattern") if name in given]
    if len(asked) > 1:
        raise OptionError(f"options {' and '.join(asked)}: only one of them can be given")
    if not asked:
        return {}
    value = given[asked[0]]
    if asked == ["subscribePattern"]:
        try:
            re.compile(value)
        except re.error as error:
            raise OptionError(f"option subscribePattern {value!r}: {error}") from None
        return {"topic_pattern": value}
    names = parse_columns(value) if value.strip() else None
    if names is None:
        raise OptionError(f"option {asked[0]}: no topic named")
    single = len(names) == 1 and not any(mark in names[0] for mark in "*?[")
    # A format that knows no topics gives its rows the one that was asked for.
    return {"topics": names, "options": {"topic": names[0]} if single else {}}


def _text(name: str, value: str) -> str:
    return value


def _table(name: str, value: str) -> str:
    return registry.table_named(value.strip()).name


def _mode(name: str, value: str) -> str:
    if value.strip().upper() not in MODES:
        raise unknown("mode", value.strip().upper(), MODES)
    return value.strip().upper()


def _boolean(name: str, value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise OptionError(f"option {name} {value!r}: true or false expected")
    return value.strip().lower() == "true"


def _count(name: str, value: str) -> int:
    if not re.fullmatch(r"\s*[1-9]\d*\s*", value):
        raise OptionError(f"option {name} {value!r}: a number above 0 expected")
    return int(value)


def _size(name: str, value: str) -> int:
    with suppress(OptionError):
        if size := parse_size(value):
            return size
    raise OptionError(f"option {name} {value!r}: a size such as 64MB, 1g or a number of bytes expected")


def _partitions(name: str, value: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in value.split(","))
    except ValueError:
        raise OptionError(f"option {name} {value!r}: partition numbers with commas between them expected") from None


def _time(name: str, value: str) -> int:
    try:
        return parse_time(value)
    except OptionError as error:
        raise OptionError(f"option {name}: {error}") from None


def _columns(name: str, value: str) -> tuple[str, ...] | None:
    return parse_columns(value)


def _offsets(name: str, value: str, *, ending: bool) -> Offsets:
    text = value.strip()
    words = {"earliest": EARLIEST, "latest": LATEST}
    if text.lower() in words:
        number = words[text.lower()]
        return Offsets(_bound(name, number, ending))
    if text.isdecimal():
        return Offsets(int(text))
    try:
        each = {
            (str(topic), int(partition)): _bound(name, _integer(offset), ending)
            for topic, partitions in json.loads(text).items()
            for partition, offset in partitions.items()
        }
    except (ValueError, AttributeError, TypeError) as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(
            f'option {name} {value!r}: earliest, latest, a number, or JSON such as {{"orders": {{"0": 23}}}} expected'
        ) from None
    return Offsets(None, {key: bound for key, bound in each.items() if bound is not None})


def _integer(offset: object) -> int:
    if not isinstance(offset, int) or isinstance(offset, bool) or offset < EARLIEST:
        raise ValueError(offset)
    return offset


def _bound(name: str, number: int, ending: bool) -> int | None:
    """None where a bound does not bind; OptionError where nothing could be read."""
    if number == (LATEST if ending else EARLIEST):
        return None
    if ending and number == EARLIEST:
        raise OptionError(f"option {name}: the end cannot be earliest")
    return number


def _parser(option: Parameter) -> Callable[[str, str], Any]:
    """How the text of an option that verbs have too is read."""
    if option.name == "columns":
        return _columns
    kinds = {Kind.TIME: _time, Kind.SIZE: _size, Kind.NUMBER: _count, Kind.PARTITIONS: _partitions, Kind.FLAG: _boolean}
    return kinds.get(option.kind, _text)


#: Option -> (field of Request or of Selection, parser). Those that choose rows are declared in `reading/options.py`, with their names here.
_PARSERS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    **{str(option.spark): (field_of(option.name), _parser(option)) for option in options_in("spark")},
    "table": ("table", _table),
    "startingOffsets": ("starting", partial(_offsets, ending=False)),
    "endingOffsets": ("ending", partial(_offsets, ending=True)),
    "mode": ("mode", _mode),
    "splitSize": ("split_size", _size),
    "pathGlobFilter": ("glob", _text),
    "maxBytesPerTrigger": ("max_bytes", _size),
    "maxFilesPerTrigger": ("max_files", _count),
    "maxRecordsPerTrigger": ("max_records", _count),
    "failOnDataLoss": ("fail_on_data_loss", _boolean),
}
#: Options that are looked at together.
_APART = ("path", "paths", "topic", "subscribe", "subscribePattern", "includeHeaders", "decode", "schemas")
NAMES = tuple(sorted((*_PARSERS, *_APART)))
