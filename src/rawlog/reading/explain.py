"""Explain: the bytes of one frame of a file, field by field, as nodes and as a page."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rawlog import registry
from rawlog.io.storage import Source
from rawlog.io.walk import (
    HEAD,
    describe,
    origin_of,
    walk,
)
from rawlog.model.errors import (
    AccessError,
    DataError,
    OptionError,
    TruncatedError,
    UnknownFormatError,
)
from rawlog.model.explain import Node, text_nodes
from rawlog.model.format import File, Format
from rawlog.model.frames import Frames
from rawlog.model.status import Status
from rawlog.model.text import counted, html_table
from rawlog.reading.tree import Tree

#: A frame is looked for from a place that an index gives, so many bytes before it at most.
NEAR = 8 << 20
LARGEST_TEXT = 1 << 20


@dataclass(frozen=True, repr=False)
class Explanation:
    """The header or a frame of a file, field by field: `nodes`, each with the nodes inside it. Iterate over it for all of them."""

    file: File
    nodes: tuple[Node, ...]

    def to_html(self) -> str:
        """A self-contained page: the bytes next to a tree of fields."""
        from rawlog.pages.bytes import explain_page

        return explain_page(self.file, self.nodes)

    def as_json(self) -> list[dict[str, Any]]:
        """Every field, for machines."""
        return [node.as_dict() for node in self.nodes]

    def __iter__(self) -> Iterator[Node]:
        return (node for top in self.nodes for _, node in top.walk())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        names = ", ".join(f"{node.name} at byte {node.position:,}" for node in self.nodes[:3])
        return f"<rawlog.Explanation {self.file.path}: {names or 'no frame'}>"

    def _repr_html_(self) -> str:
        """The fields as a table, for a notebook."""
        rows = [
            (node.position, "\u2003" * depth + node.name, node.type, node.value, node.meaning)
            for top in self.nodes
            for depth, node in top.walk()
        ]
        return html_table(("position", "name", "type", "value", "meaning"), rows, repr(self))


def explain_frame(
    tree: Tree,
    *,
    at: int | None = None,
    offset: int | None = None,
    number: int | None = None,
    show_secrets: bool = False,
) -> Explanation:
    """The frame at a byte, with an offset or of a number, in the one file of a tree; the header and first frame if none is given.

    With `offset` the tree may be the directory of a partition. OptionError if there is no such frame; DataError at damage.
    """
    if sum(choice is not None for choice in (at, offset, number)) > 1:
        raise OptionError("--at, --offset and --number exclude one another")
    path = ", ".join(tree.roots)
    if len(tree) == 1:
        file = tree.files[0]
        return explain_in_file(file, at=at, offset=offset, number=number, show_secrets=show_secrets)
    if offset is None or not len(tree):
        more = "; with --offset it takes the directory of a partition" if len(tree) else ""
        raise AccessError(f"{path}: explain takes one file, and here are {len(tree):,}{more}")
    file = _in_directory(tree, path, offset)
    return explain_in_file(file, tree.group_of(file), offset=offset, show_secrets=show_secrets)


def explain_in_file(
    file: File,
    group: Sequence[File] = (),
    *,
    at: int | None = None,
    offset: int | None = None,
    number: int | None = None,
    begins: bool = False,
    show_secrets: bool = False,
    seen: Callable[[Frames], None] | None = None,
) -> Explanation:
    """The same in a file. The indexes in its `group` are used; `begins` says that a frame begins at `at`, so that none are searched for.

    `seen` is shown every window of frames that is searched.
    """
    format = _explainable(file)
    if not format.can("explain"):
        nodes = _plain_text(file, format, is_whole=at is None and offset is None and number is None)
    else:
        nodes = _nodes(file, format, group, at, offset, number, begins, seen)
    if show_secrets:
        for node in nodes:
            node.reveal()
    return Explanation(file, tuple(nodes))


def _explainable(file: File) -> Format:
    """The format of a file; the error that says why it has none."""
    file.check_readable()
    if file.format is None:
        raise UnknownFormatError(f"{file.path}: not a file of any known format")
    return registry.formats()[file.format]


def _plain_text(file: File, format: Format, *, is_whole: bool) -> list[Node]:
    """A file that has no frames: its text. UnknownFormatError if it is not text, or a part of it is asked for."""
    nodes = None
    if is_whole and file.size <= LARGEST_TEXT:
        with Source(file.path) as source:
            nodes = text_nodes(source.read(0, source.size))
    if nodes is None:
        raise UnknownFormatError(f"{file.path}: recognised as {format.name}, which cannot be explained")
    return nodes


def _in_directory(tree: Tree, path: str, offset: int) -> File:
    """The file of a partition that has an offset."""
    ordered = {name for name, format in registry.formats().items() if format.ordered and format.can("explain")}
    files = [file for file in tree if file.format in ordered and file.place.state is None]
    groups = {file.place.group for file in files}
    if len(groups) != 1:
        what = "no partition" if not groups else counted(len(groups), "partition")
        raise OptionError(f"{path}: {what} here: name the directory of one, or a file")
    # Later files begin after the offset; the last of the others has it, unless it ends before.
    before = [file for file in files if (file.place.start_offset or 0) <= offset]
    if not before:
        raise OptionError(_missing_text(None, offset, None))
    return max(before, key=lambda file: file.place.start_offset or 0)


def _nodes(
    file: File,
    format: Format,
    group: Sequence[File],
    at: int | None,
    offset: int | None,
    number: int | None,
    begins: bool = False,
    seen: Callable[[Frames], None] | None = None,
) -> list[Node]:
    with Source(file.path) as source:
        head = source.read(0, HEAD)
        if at is not None and at >= source.size:
            raise OptionError(f"--at {at}: the file ends at byte {source.size:,}")
        first = at is None and offset is None and number is None
        nodes: list[Node] = []
        if format.can("explain_header"):
            header = format.codec.explain_header(head, file)
            if first or (at is not None and at < origin_of(format, source).position):
                nodes += header
                if not first:
                    return nodes
        start = format.codec.seek(file, group, offset, None) if format.can("seek") and offset is not None else None
        if at is not None:
            start = at if begins else _cut_before(file, format, group, at)
        frame = None
        if start is None or at is None or begins:
            frame = _find(file, format, source, start, at, offset, 0 if first else number, seen)
        else:
            with contextlib.suppress(DataError):
                frame = _find(file, format, source, start, at, None, None, seen)
            frame = frame or _find(file, format, source, None, at, None, None, seen)  # the index was wrong
        if frame is None:
            if first:
                return nodes
            raise OptionError(_missing_text(at, offset, number))
        try:
            return nodes + format.codec.explain(frame, file)
        except DataError as error:
            raise error.at(path=file.path, format=format.name) from None


def _cut_before(file: File, format: Format, group: Sequence[File], at: int) -> int | None:
    """A frame's position not far before a byte, by the index of the file; None where none helps."""
    if not format.can("cuts") or at < NEAR:
        return None
    return max((position for position in format.codec.cuts(file, group, NEAR) if position <= at), default=None)


def _missing_text(at: int | None, offset: int | None, number: int | None) -> str:
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
    seen: Callable[[Frames], None] | None = None,
) -> Frames | None:
    """The one frame that is wanted. DataError if there is damage or the end of the file instead."""
    if offset is not None and not format.can("spans"):
        raise OptionError(f"{format.name} has no offsets: use --at or --number")
    for frames in walk(file, format, start=start, errors="stop" if offset is None else "skip", source=source):
        if seen is not None:
            seen(frames)
        index = -1
        if at is not None and len(frames) and int(frames.positions[0]) <= at < frames.reached_in_file:
            index = int(np.searchsorted(frames.positions, at, side="right")) - 1
        elif number is not None and frames.first <= number < frames.first + len(frames):
            index = number - frames.first
        elif offset is not None:
            index = _with_offset(frames, format, file, offset)
        if index >= 0:
            return frames.slice(index, index + 1)
        is_later = at is not None or number is not None
        if frames.last and is_later and frames.status.is_damage:
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
    """The frame of a window that has an offset, or -1. Frames whose checksum is wrong are skipped."""
    first = 0
    while first < len(frames):
        rest = frames.slice(first, len(frames))
        bad = len(rest)
        try:
            spans = format.codec.spans(rest, file)
        except DataError as error:
            bad = max(0, int(np.searchsorted(rest.positions, error.position or 0, side="right")) - 1)
            if bad == 0:
                first += 1
                continue
            spans = format.codec.spans(rest.slice(0, bad), file)
        if spans.start_offset is None or spans.stop_offset is None:
            return -1
        hits = np.flatnonzero((spans.start_offset <= offset) & (offset < spans.stop_offset))
        if hits.size:
            return first + int(hits[0])
        first += bad + (1 if bad < len(rest) else 0)
    return -1
