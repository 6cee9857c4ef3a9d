"""`rawlog ls`: what is there."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from rawlog.cli import options, output
from rawlog.cli.grid import aligned
from rawlog.core.text import counted, offset_range, printable, size_text

if TYPE_CHECKING:
    import pyarrow as pa

    from rawlog.core.format import File

COLOURS = {"ok": "green", "damaged": "red", "truncated": "yellow", "unknown": None, "empty": None}


@click.command(
    epilog=options.examples(
        "rawlog ls kafka-logs/ --topic 'orders*'",
        "rawlog ls /var/rocketmq/store --all --json",
        more="Exit codes: 0 listed, whatever the state of the files; 3 some could not be read.",
    )
)
@options.paths
@click.option("--topic", multiple=True, metavar="GLOB", help="Only these topics; may be given again.")
@click.option("--partition", multiple=True, type=options.Partitions(), metavar="N", help="Only these partitions.")
@click.option("-a", "--all", "every", is_flag=True, help="One line per file, indexes and the like too.")
@options.json_flag
@click.pass_context
def command(
    ctx: click.Context,
    paths: tuple[str, ...],
    as_format: str | None,
    topic: tuple[str, ...],
    partition: tuple[tuple[int, ...], ...],
    every: bool,
    as_json: bool,
) -> None:
    """List the files at the PATHs by system, topic and partition: offsets, times, counts and state.

    Every file is read once, checksums included. State: ok, truncated (ends inside a frame), damaged, empty, unknown.
    """
    from rawlog import api
    from rawlog.cli.notes import Notes
    from rawlog.cli.progress import Bar
    from rawlog.reading.render import json_lines

    notes = Notes()
    with Bar("reading") as bar:
        asked: dict[str, Any] = {"topic": topic, "partition": options.numbers(partition), "format": as_format}
        found = api.ls(paths, note=notes, progress=bar, **asked)
        if as_json:
            lines = json_lines(found.schema)
            for batch in found.batches():
                output.write(lines.render(batch))
        else:
            measured: list[dict[str, Any]] = []
            for batch in found.batches():
                columns = _plain(batch)
                measured += (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
            _show(list(zip(found.tree, measured, strict=True)), every)
    output.flush()
    ctx.exit(notes.code)


def _plain(row: pa.RecordBatch) -> dict[str, list[Any]]:
    """The values, with times as text: Python's calendar does not have all of them."""
    import pyarrow as pa

    from rawlog.cli.grid import cells

    return {
        field.name: cells(column) if pa.types.is_timestamp(field.type) else column.to_pylist()
        for field, column in zip(row.schema, row.columns, strict=True)
    }


def _show(measured: list[tuple[File, dict[str, Any]]], every: bool) -> None:
    for system, of_system in groupby(measured, key=lambda item: item[0].system):
        output.line(output.style(system or "unknown", bold=True))
        for (topic, partition, group), items in groupby(of_system, key=_group):
            members = list(items)
            if group is not None or topic is not None:
                name = topic if partition is None else f"{topic}-{partition}"
                output.line(f"  {output.style(printable(str(name or group)), bold=True)}  {_facts(members)}")
            extra, rows = [], []
            for file, row in members:
                if not every and _is_extra(file, row):
                    extra.append(file)
                else:
                    rows.append(_cells(file, row))
            indent = "    " if group is not None or topic is not None else "  "
            for line in aligned(rows, (False, False, True, True), indent):
                output.line(line)
            if extra:
                counts = Counter(str(file.format) for file in extra)
                output.line(f"{indent}and " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))
    total = sum(file.size for file, _ in measured)
    records = sum(row["records"] or 0 for _, row in measured)
    output.line(f"{counted(len(measured), 'file')}, {size_text(total)}, {counted(records, 'record')}")


def _is_extra(file: File, row: dict[str, Any]) -> bool:
    """Whether a file has no records of its own and nothing is wrong with it."""
    return (
        file.format is not None
        and file.problem is None
        and not _has_records(file)
        and row["state"] in ("ok", "empty", None)
    )


def _has_records(file: File) -> bool:
    from rawlog import registry

    return file.format is not None and any(table.name == "records" for table in registry.formats()[file.format].tables)


def _group(item: tuple[File, dict[str, Any]]) -> tuple[str | None, int | None, str | None]:
    place = item[0].place
    return place.topic, place.partition, place.group


def _facts(members: list[tuple[File, dict[str, Any]]]) -> str:
    """The files of a partition in sum."""
    rows = [row for _, row in members]
    read = [row for file, row in members if row["frames"] is not None and _has_records(file)]
    starts = [row["start_offset"] for row in read if row["start_offset"] is not None]
    ends = [row["end_offset"] for row in read if row["end_offset"] is not None]
    facts = [counted(len(rows), "file"), size_text(sum(row["size"] for row in rows))]
    if starts and ends:
        facts.append(offset_range(min(starts), max(ends)))
    low = min((row["min_timestamp"] for row in read if row["min_timestamp"]), default="")
    high = max((row["max_timestamp"] for row in read if row["max_timestamp"]), default="")
    if low or high:
        facts.append(f"{low} to {high}")
    if read and all(row["records"] is not None for row in read):
        facts.append(counted(sum(row["records"] for row in read), "record"))
    bad = sorted({row["state"] for row in rows if row["state"] in ("damaged", "truncated")})
    return ", ".join([*facts, *bad])


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
    shown = output.style(printable(state), fg=COLOURS.get(state)) if COLOURS.get(state) else printable(state)
    return [printable(name), row["format"] or "", size_text(row["size"]), records, offsets, times, shown]
