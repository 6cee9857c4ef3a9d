"""`rawlog explain`: the bytes of a frame, field by field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rawlog.cli import options, output
from rawlog.cli.grid import cut, pad, width_of
from rawlog.core.text import counted, printable, to_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rawlog.core.explain import Node
    from rawlog.core.format import File, Format
    from rawlog.core.frames import Frames
    from rawlog.reading.tree import Tree

#: So many bytes of a field are shown to people; --json and --html show all.
HEX_BYTES = 16
TEXT_CELLS = 60


@click.command()
@click.argument("file", type=options.PATH, metavar="PATH")
@click.option("--at", type=click.IntRange(0), metavar="POSITION", help="The frame that holds this byte of the file.")
@click.option("--offset", type=int, metavar="N", help="The frame that holds this offset.")
@click.option("--number", type=click.IntRange(0), metavar="N", help="The frame of this number, from 0.")
@click.option("--html", "html", type=options.PATH, metavar="OUT", help="Write a self-contained page as well.")
@click.option("--as", "as_format", metavar="FORMAT", help="Read the file as this format, whatever it looks like.")
@options.show_secrets
@options.json_flag
@click.pass_context
def command(
    ctx: click.Context,
    file: str,
    at: int | None,
    offset: int | None,
    number: int | None,
    html: str | None,
    as_format: str | None,
    show_secrets: bool,
    as_json: bool,
) -> None:
    """Show the bytes of a frame of a file: position, hex, name, type, value and meaning, to the last bit.

    Without --at, --offset or --number: the file's header and its first frame. PATH may be the directory of a partition where --offset
    tells which of its files is meant.

    \b
    rawlog explain orders-0/00000000000000000000.log --at 1204
    rawlog explain orders-0/ --offset 42 --html batch.html
    """
    from rawlog.core.errors import AccessError, OptionError
    from rawlog.reading.tree import open_tree

    if sum(choice is not None for choice in (at, offset, number)) > 1:
        raise OptionError("--at, --offset and --number exclude one another")
    tree = open_tree(file, format=as_format)
    if len(tree) == 1:
        found = tree.files[0]
        nodes = _nodes(found, _explainable(found), (), at, offset, number)
    elif offset is None or not len(tree):
        more = "; with --offset it takes the directory of a partition" if len(tree) else ""
        raise AccessError(f"{file}: explain takes one file, and here are {len(tree):,}{more}")
    else:
        found, nodes = _in_directory(tree, file, offset)
    if show_secrets:
        for node in nodes:
            node.reveal()
    if html is not None:
        from rawlog.cli.page import page
        from rawlog.io.output import writing

        with writing(html, overwrite=True, sources=tree.sources) as out:
            out.write(page(found, nodes).encode())
    if as_json:
        output.json_rows(node.as_dict() for node in nodes)
    else:
        _show(nodes)
    output.flush()


def _explainable(file: File) -> Format:
    """The format of a file that can be explained; the error that says why it cannot."""
    from rawlog import registry
    from rawlog.core.errors import AccessError, UnknownFormatError, UnsupportedError

    if file.problem is not None:
        raise AccessError(f"{file.path}: {file.problem}")
    if file.format is None:
        raise UnknownFormatError(f"{file.path}: not a file of any known format; --as FORMAT names one")
    format = registry.formats()[file.format]
    if format.explain is None:
        raise UnsupportedError("recognised, but cannot be explained yet", path=file.path, format=format.name)
    return format


def _in_directory(tree: Tree, path: str, offset: int) -> tuple[File, list[Node]]:
    """The frame that holds an offset, and the file of a partition that it is in."""
    from rawlog import registry
    from rawlog.core.errors import OptionError

    ordered = {name for name, format in registry.formats().items() if format.ordered and format.explain is not None}
    files = [file for file in tree if file.format in ordered and file.place.state is None]
    groups = {file.place.group for file in files}
    if len(groups) != 1:
        what = "no partition" if not groups else counted(len(groups), "partition")
        raise OptionError(f"{path}: {what} here: name the directory of one, or a file")
    # Later ones begin behind the offset; the last of the others holds it, unless it ends before.
    before = [file for file in files if (file.place.start_offset or 0) <= offset]
    if not before:
        raise OptionError(_missing(None, offset, None))
    file = max(before, key=lambda one: one.place.start_offset or 0)
    return file, _nodes(file, _explainable(file), tree.group_of(file), None, offset, None)


def _nodes(
    file: File, format: Format, group: Sequence[File], at: int | None, offset: int | None, number: int | None
) -> list[Node]:
    from rawlog.core.errors import DataError, OptionError
    from rawlog.io.storage import Source
    from rawlog.io.walk import HEAD, origin_of

    assert format.explain is not None
    with Source(file.path) as source:
        head = source.read(0, HEAD)
        if at is not None and at >= source.size:
            raise OptionError(f"--at {at}: the file ends at byte {source.size:,}")
        first = at is None and offset is None and number is None
        nodes: list[Node] = []
        if format.explain_header is not None:
            header = format.explain_header(head, file)
            if first or (at is not None and at < origin_of(format, source).position):
                nodes += header
                if not first:
                    return nodes
        start = format.seek(file, group, offset, None) if format.seek is not None and offset is not None else None
        frame = _find(file, format, source, start, at, offset, 0 if first else number)
        if frame is None:
            if first:
                return nodes
            raise OptionError(_missing(at, offset, number))
        try:
            return nodes + format.explain(frame, file)
        except DataError as error:
            raise error.at(path=file.path, format=format.name) from None


def _missing(at: int | None, offset: int | None, number: int | None) -> str:
    if at is not None:
        return f"--at {at}: no frame holds this byte"
    return (
        f"--offset {offset}: no frame holds it" if offset is not None else f"--number {number}: there are fewer frames"
    )


def _find(
    file: File,
    format: Format,
    source: Any,
    start: int | None,
    at: int | None,
    offset: int | None,
    number: int | None,
) -> Frames | None:
    """The one frame that is wanted. DataError if damage or the end of the file stands in its place."""
    import numpy as np

    from rawlog.core.errors import OptionError, TruncatedError
    from rawlog.core.status import Status
    from rawlog.io.walk import describe, walk

    if offset is not None and format.spans is None:
        raise OptionError(f"{format.name} has no offsets: use --at or --number")
    for frames in walk(file, format, start=start, errors="stop" if offset is None else "skip", source=source):
        index = -1
        if at is not None and len(frames) and int(frames.positions[0]) <= at < frames.reached_in_file:
            index = int(np.searchsorted(frames.positions, at, side="right")) - 1
        elif number is not None and frames.first <= number < frames.first + len(frames):
            index = number - frames.first
        elif offset is not None:
            index = _with_offset(frames, format, file, offset)
        if index >= 0:
            return frames.slice(index, index + 1)
        wanted_behind = at is not None or number is not None
        if frames.last and wanted_behind and frames.status.is_damage:
            raise describe(format, frames, file.path)
        if frames.last and at is not None and frames.status is Status.TRUNCATED and at >= frames.reached_in_file:
            raise TruncatedError(
                f"byte {at:,} lies in an unfinished frame, the last {frames.data.size - frames.reached:,} bytes of the file",
                path=file.path,
                format=format.name,
                position=frames.reached_in_file,
            )
    return None


def _with_offset(frames: Frames, format: Format, file: File, offset: int) -> int:
    """The frame of a window that holds an offset, or -1. Frames whose checksum is wrong are passed over."""
    import numpy as np

    from rawlog.core.errors import DataError

    assert format.spans is not None
    first = 0
    while first < len(frames):
        rest = frames.slice(first, len(frames))
        bad = len(rest)
        try:
            spans = format.spans(rest, file)
        except DataError as error:
            bad = max(0, int(np.searchsorted(rest.positions, error.position or 0, side="right")) - 1)
            if bad == 0:
                first += 1
                continue
            spans = format.spans(rest.slice(0, bad), file)
        if spans.start_offset is None or spans.stop_offset is None:
            return -1
        hits = np.flatnonzero((spans.start_offset <= offset) & (offset < spans.stop_offset))
        if hits.size:
            return first + int(hits[0])
        first += bad + (1 if bad < len(rest) else 0)
    return -1


def _show(nodes: list[Node]) -> None:
    lines: list[tuple[str, str, str, str, str, str]] = []
    for top in nodes:
        for depth, node in top.walk():
            lines.append(
                (
                    f"{node.position:,}",
                    _hex(node),
                    "  " * depth + printable(node.name),
                    node.type,
                    cut(value_text(node.value), TEXT_CELLS),
                    printable(node.meaning),
                )
            )
    if not lines:
        output.line("no frame")
        return
    heads = ("position", "hex", "name", "type", "value", "meaning")
    widths = [max(width_of(row[column]) for row in (heads, *lines)) for column in range(5)]
    output.line(output.style(_line(heads, widths), bold=True))
    for line in lines:
        output.line(_line(line, widths))


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    texts = [pad(text, width, right=index == 0) for index, (text, width) in enumerate(zip(row, widths, strict=False))]
    return "  ".join([*texts, row[5]]).rstrip()


def _hex(node: Node) -> str:
    if node.children and not node.hex:
        return f"({node.size:,} bytes)" + (f" {node.inside}" if node.inside else "")
    pairs = node.hex.split()
    if len(pairs) <= HEX_BYTES:
        return node.hex
    return " ".join(pairs[: HEX_BYTES - 1]) + f" … ({len(pairs):,} bytes)"


def value_text(value: Any) -> str:
    """A node's value for people."""
    if value is None:
        return ""
    if isinstance(value, (bytes, str)):
        return f'"{printable(value)}"'
    return printable(value if isinstance(value, str) else to_json(value))
