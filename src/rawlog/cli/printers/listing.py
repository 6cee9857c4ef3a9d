"""Prints the listing of `ls`: a line for each partition or store."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

from rawlog.cli import output
from rawlog.cli.command import Call, Detail
from rawlog.cli.grid import fit_columns
from rawlog.cli.printers import Json
from rawlog.model.errors import RawlogError
from rawlog.model.text import (
    counted,
    offset_range,
    printable,
    size_text,
)
from rawlog.model.verb import Option
from rawlog.verbs.ls import STATES

if TYPE_CHECKING:
    import pyarrow as pa

    from rawlog.model.format import File
    from rawlog.model.verb import Section
    from rawlog.reading.listing import Listing

HEADINGS = ("", "files", "size", "records", "start", "end", "times", "state")
LEFT = ("", "times", "state")
"""Columns of words; the others have numbers."""
LEAST = ("files", "times", "size")
"""Columns that are left out first on a narrow terminal."""
WORDS = frozenset({"topic", "first", "last", "lag"})
"""Columns of words in what a system says of a store."""
Item = tuple["File", "dict[str, Any]"]
Key = tuple[str | None, int | None, str | None]
FILE = ("file", "format", "size", "records", "offsets", "times", "state")
"""The columns of a line for a file, which has no heading."""
FILE_LEFT = ("file", "format", "offsets", "times", "state")
FILE_LEAST = ("times", "format", "size")
COLOURS = {"ok": "green", "damaged": "red", "truncated": "yellow", "unreadable": "red"}


def show(
    call: Call,
    *,
    every: Annotated[
        bool, Option("Print one line per file, indexes and the like too.", "-a", "--files", "--all", section="Output")
    ] = False,
    as_json: Json = False,
) -> int:
    """Print a listing as it is made, one line per partition or store; JSON has one line per file."""
    from rawlog.reading.parts import notes as choices
    from rawlog.reading.render import json_lines

    with call.progress() as bar:
        listing = call.function(progress=bar)
        if as_json:
            lines = json_lines(listing.schema)
            for batch in listing.batches():
                output.write(lines.render(batch))
            for text in choices(listing.replicas):
                call.notes(text)
        else:
            measured_rows: list[dict[str, Any]] = []
            for batch in listing.batches():
                columns = _plain(batch)
                measured_rows += (
                    dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
                )
            measured = list(zip(listing.shown, measured_rows, strict=True))
            _show(listing, measured, every or call.detail is Detail.ALL)
    output.flush()
    return call.notes.code


def _plain(row: pa.RecordBatch) -> dict[str, list[Any]]:
    """The values, with times as text: Python's calendar does not have all of them."""
    import pyarrow as pa

    from rawlog.cli.grid import cells

    return {
        field.name: cells(column) if pa.types.is_timestamp(field.type) else column.to_pylist()
        for field, column in zip(row.schema, row.columns, strict=True)
    }


def _show(listing: Listing, measured: list[Item], with_files: bool) -> None:
    from rawlog.reading.parts import marks

    replicas = marks(listing.replicas)
    served = _Served(listing)
    for system, of_system in groupby(measured, key=lambda item: item[0].system):
        output.line(output.style(system or "unknown", bold=True))
        by_group: dict[Key, list[Item]] = {}
        contents = _contents(listing, system)
        for item in of_system:
            key = _group(item)
            by_group.setdefault((None, None, key[2]) if key[2] in contents else key, []).append(item)
        lines = _system_lines(by_group, contents, served)
        output.line(output.style(lines[0], bold=True))
        for ((_, _, group), items), line in zip(by_group.items(), lines[1:], strict=True):
            output.line(line)
            if group in replicas:
                output.line(f"    {printable(replicas[group])}")
            section = contents.get(group)
            if section is not None and section.title:
                for text in _section_lines(section):
                    output.line(text)
            shown = [_cells(file, row) for file, row in items if with_files or _is_bad(file, row)]
            if len(items) > 1 or with_files:
                for file_line in fit_columns(FILE, shown, FILE_LEFT, "    ", FILE_LEAST) if shown else ():
                    output.line(file_line)
    total = sum(file.size for file, _ in measured)
    records = sum(served.records(file, row) for file, row in measured)
    output.line(f"{counted(len(measured), 'file')}, {size_text(total)}, {counted(records, 'record')}")
    if served.others:
        others = ", ".join(f"{number:,} {why}" for why, number in served.others.items())
        output.sentence(f"  in the files, but not for consumers, and not counted: {others}", "    ")
    if damaged := sum(row["state"] == "damaged" and _has_records(file) for file, row in measured):
        files = counted(damaged, "file")
        output.sentence(
            f"  in the files after damage, and not counted: the rest of {files}; `rawlog count --errors skip` counts it",
            "    ",
        )


class _Served:
    """The records that a consumer gets: those that `cat` and `count` have. `others` are in the files too, by reason."""

    def __init__(self, listing: Listing) -> None:
        self.listing = listing
        self.others: dict[str, int] = {}
        self._below: dict[str, int] = {}

    def floor(self, file: File) -> int | None:
        """The first offset of a file for a consumer, if it is not that of the file."""
        return self.listing.floor(file)

    def records(self, file: File, row: dict[str, Any]) -> int:
        """How many of its records count; the others are noted."""
        records: int = (row["records"] or 0) if _has_records(file) else 0
        if not records:
            return 0
        if file.place.state is not None:
            return self._leave(records, records, f"in files marked {printable(file.place.state)}")
        if file.path in self.listing.unread:
            return self._leave(records, records, "in other replicas")
        below = self.below(file)
        return self._leave(records, below, "below the log start") if below else records

    def below(self, file: File) -> int:
        """How many records of a file are below the log start."""
        from rawlog.reading.inspect import records_below

        if file.path not in self._below:
            floor = self.floor(file)
            self._below[file.path] = 0 if floor is None else records_below(file, floor)
        return self._below[file.path]

    def _leave(self, records: int, number: int, why: str) -> int:
        self.others[why] = self.others.get(why, 0) + number
        return records - number


def _contents(listing: Listing, system: str | None) -> dict[str | None, Section]:
    """What a system says of each of its stores in its own words; nothing of a store that cannot be read."""
    from rawlog import registry

    family = next((family for family in registry.families() if family.name == system), None)
    if family is None or not family.store_class.can("inventory"):
        return {}
    contents: dict[str | None, Section] = {}
    for group in listing.tree.groups:
        if group[0].system == system:
            with contextlib.suppress(RawlogError):
                section = family.store_class.of(group).inventory()
                if section is not None:
                    contents[group[0].place.group] = section
    return contents


def _system_lines(groups: dict[Key, list[Item]], contents: dict[str | None, Section], served: _Served) -> list[str]:
    """A line for each partition or store of a system, after one of headings. What a system says without a title is in the line itself."""
    heads = next((section.head for section in contents.values() if not section.title), ())
    names = [*HEADINGS[:3], *heads, *HEADINGS[-2:]] if heads else list(HEADINGS)
    rows: list[Sequence[str]] = [names]
    known = Counter(map(_name, groups))
    for key, items in groups.items():
        name = _name(key) if known[_name(key)] == 1 else str(key[2])
        cells = dict(zip(HEADINGS, [printable(name), *_summary(items, served)], strict=True))
        section = contents.get(key[2])
        if section is not None:
            cells |= dict.fromkeys(("start", "end"), "")
            if not section.title:
                cells |= dict(zip(section.head, map(str, section.rows[0]), strict=True))
        rows.append([cells.get(name, "") for name in names])
    filled = [at for at, name in enumerate(names) if not name or name == "state" or any(row[at] for row in rows[1:])]
    return fit_columns([names[at] for at in filled], [[row[at] for at in filled] for row in rows], LEFT, "  ", LEAST)


def _section_lines(section: Section) -> list[str]:
    """The table of a store."""
    filled = [at for at in range(len(section.head)) if any(row[at] for row in section.rows)]
    rows = [[printable(str(row[at])) for at in filled] for row in (section.head, *section.rows)]
    return fit_columns(rows[0], rows, WORDS, "    ", ("first", "last"))


def _is_bad(file: File, row: dict[str, Any]) -> bool:
    """Whether a file is shown although nobody asked for files."""
    return file.problem is not None or row["state"] in ("damaged", "truncated", "unknown")


def _has_records(file: File) -> bool:
    """Whether a file is one that records are read from."""
    from rawlog import registry
    from rawlog.model.table import RECORDS

    return file.format in registry.formats_with(RECORDS)


def _group(item: Item) -> Key:
    """What a line is of: a partition, a store, or a file that belongs to none."""
    place = item[0].place
    if place.topic is None and place.group is None:
        return None, None, item[0].path
    return place.topic, place.partition, place.group


def _name(key: Key) -> str:
    """The name of a partition or store; what several directories have is told apart by their paths."""
    topic, partition, group = key
    return str(group) if topic is None else topic if partition is None else f"{topic}-{partition}"


def _summary(members: list[Item], served: _Served) -> list[str]:
    """The files of a partition or store in sum, as cells of a line after its name."""
    rows = [row for _, row in members]
    # What the system itself would not load does not count, unless there is nothing else.
    loaded = [member for member in members if member[0].place.state is None and _has_records(member[0])] or members
    read = [row for file, row in loaded if row["frames"] is not None and _has_records(file)]
    starts = [row["start_offset"] for row in read if row["start_offset"] is not None]
    ends = [row["end_offset"] for row in read if row["end_offset"] is not None]
    floors = [floor for floor in (served.floor(file) for file, _ in loaded) if floor is not None]
    starts = [max(min(starts), *floors)] if starts and floors else starts
    below = sum(served.below(file) for file, _ in loaded)
    low = min((row["min_timestamp"] for row in read if row["min_timestamp"]), default="")
    high = max((row["max_timestamp"] for row in read if row["max_timestamp"]), default="")
    is_counted = bool(read) and all(row["records"] is not None for row in read)
    states = {"unreadable" if file.problem is not None else row["state"] for file, row in members}
    worst = next((state for state in ("unreadable", *STATES) if state in states), "not read")
    apart = {file.place.state for file, _ in members}
    mark = f"{printable(str(apart.pop()))}, " if len(apart) == 1 and None not in apart else ""
    return [
        f"{len(rows):,}",
        size_text(sum(row["size"] for row in rows)),
        f"{sum(row['records'] for row in read) - below:,}" if is_counted else "",
        f"{min(starts):,}" if starts and ends else "",
        f"{max(ends):,}" if starts and ends else "",
        f"{low} to {high}" if low or high else "",
        mark + _colour(worst),
    ]


def _colour(state: str) -> str:
    return output.style(printable(state), fg=COLOURS[state]) if COLOURS.get(state) else printable(state)


def _cells(file: File, row: dict[str, Any]) -> list[str]:
    name = file.path.rsplit("/", 1)[-1] if file.place.group is not None else file.path
    offsets = "" if row["end_offset"] is None else offset_range(row["start_offset"], row["end_offset"])
    times = f"{row['min_timestamp']} to {row['max_timestamp']}" if row["min_timestamp"] else ""
    records = counted(row["records"], "record") if row["records"] is not None and _has_records(file) else ""
    state = row["state"] or "not read"
    if file.problem is not None:
        state = f"unreadable: {file.problem}"
    if file.place.state is not None:
        state = f"{file.place.state}, {state}"
    return [printable(name), row["format"] or "", size_text(row["size"]), records, offsets, times, _colour(state)]
