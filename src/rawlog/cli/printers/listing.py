"""Prints the listing of `ls`: a line for each partition or store."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import click

from rawlog.cli import output
from rawlog.cli.command import Call, Detail
from rawlog.cli.grid import align_rows, width_of
from rawlog.cli.printers import Json
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

RIGHT = (False, True, True, True, False, False, False)
LEAST = ("files", "times", "size")
"""Columns that are left out first on a narrow terminal."""
HEADINGS = ("", "files", "size", "records", "offsets", "times", "state")
Item = tuple["File", "dict[str, Any]"]
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
    from rawlog.reading.parts import marks
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
            measured: list[dict[str, Any]] = []
            for batch in listing.batches():
                columns = _plain(batch)
                measured += (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
            _show(
                list(zip(listing.shown, measured, strict=True)),
                every or call.detail is Detail.ALL,
                marks(listing.replicas),
            )
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


def _show(measured: list[Item], with_files: bool, replicas: dict[str, str]) -> None:
    for system, of_system in groupby(measured, key=lambda item: item[0].system):
        output.line(output.style(system or "unknown", bold=True))
        groups = [(key, list(items)) for key, items in groupby(of_system, key=_group)]
        lines = _lines([HEADINGS, *(_summary(key, items) for key, items in groups)])
        output.line(output.style(lines[0], bold=True))
        for ((_, _, group), items), line in zip(groups, lines[1:], strict=True):
            output.line(line)
            if group in replicas:
                output.line(f"    {printable(str(group))}: {printable(replicas[group])}")
            shown = [_cells(file, row) for file, row in items if with_files or _is_bad(file, row)]
            if len(items) > 1 or with_files:
                for file_line in align_rows(shown, (False, False, True, True), "    "):
                    output.line(file_line)
    total = sum(file.size for file, _ in measured)
    records = sum(row["records"] or 0 for _, row in measured)
    output.line(f"{counted(len(measured), 'file')}, {size_text(total)}, {counted(records, 'record')}")


def _lines(rows: list[Sequence[str]]) -> list[str]:
    """Rows of a system, aligned; on a narrow terminal without the columns that matter least."""
    columns = list(range(len(HEADINGS)))
    for least in (None, *LEAST):
        if least is not None:
            columns.remove(HEADINGS.index(least))
        lines = align_rows(
            [[row[column] for column in columns] for row in rows], [RIGHT[column] for column in columns], "  "
        )
        width = max(width_of(click.unstyle(line)) for line in lines)
        if not output.is_terminal() or width <= shutil.get_terminal_size().columns:
            break
    return lines


def _is_bad(file: File, row: dict[str, Any]) -> bool:
    """Whether a file is shown although nobody asked for files."""
    return file.problem is not None or row["state"] in ("damaged", "truncated", "unknown")


def _has_records(file: File) -> bool:
    from rawlog import registry

    return file.format is not None and any(table.name == "records" for table in registry.formats()[file.format].tables)


def _group(item: Item) -> tuple[str | None, int | None, str | None]:
    """What a line is of: a partition, a store, or a file that belongs to none."""
    place = item[0].place
    if place.topic is None and place.group is None:
        return None, None, item[0].path
    return place.topic, place.partition, place.group


def _summary(key: tuple[str | None, int | None, str | None], members: list[Item]) -> list[str]:
    """The files of a partition or store in sum, as cells of a line."""
    topic, partition, group = key
    name = topic if topic is None or partition is None else f"{topic}-{partition}"
    name = name or str(group)
    rows = [row for _, row in members]
    # What the system itself would not load does not count, unless there is nothing else.
    loaded = [member for member in members if member[0].place.state is None and _has_records(member[0])] or members
    read = [row for file, row in loaded if row["frames"] is not None and _has_records(file)]
    starts = [row["start_offset"] for row in read if row["start_offset"] is not None]
    ends = [row["end_offset"] for row in read if row["end_offset"] is not None]
    low = min((row["min_timestamp"] for row in read if row["min_timestamp"]), default="")
    high = max((row["max_timestamp"] for row in read if row["max_timestamp"]), default="")
    is_counted = bool(read) and all(row["records"] is not None for row in read)
    states = {"unreadable" if file.problem is not None else row["state"] for file, row in members}
    worst = next((state for state in ("unreadable", *STATES) if state in states), "not read")
    apart = {file.place.state for file, _ in members}
    mark = f"{printable(str(apart.pop()))}, " if len(apart) == 1 and None not in apart else ""
    return [
        printable(name),
        f"{len(rows):,}",
        size_text(sum(row["size"] for row in rows)),
        f"{sum(row['records'] for row in read):,}" if is_counted else "",
        offset_range(min(starts), max(ends)).removeprefix("offsets ").removeprefix("offset ")
        if starts and ends
        else "",
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
