"""Plan: which bytes of which files each table of the lake lacks, according to the table's own snapshots."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rawlog import registry
from rawlog.core.errors import AccessError, OptionError
from rawlog.core.format import File
from rawlog.core.tables import FILES, FINDINGS, Table
from rawlog.io.storage import Source
from rawlog.jobs.ingest import folds
from rawlog.jobs.ingest.values import Piece
from rawlog.jobs.job import packed
from rawlog.jobs.lake import History, Lake, Taken, history_of, lake_name
from rawlog.jobs.partitions import Cut, cuts_of, parse_cuts
from rawlog.jobs.verify import near
from rawlog.reading.parts import Part, asked_of, cut, whole
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree

#: Bytes of input per split: about a second of work, and one Parquet file per table.
SMALLEST, LARGEST = 16 << 20, 128 << 20
SPLITS = 8
#: Bytes at either end of what was ingested whose checksum identifies it.
MARK = 4096


class Plan:
    """What to do, and what the lake held when that was decided."""

    def __init__(
        self,
        lake: Lake,
        tree: Tree,
        whole: Tree,
        tables: Sequence[Table],
        selection: Selection,
        uncut: frozenset[str],
        partition_by: Sequence[str] | None = None,
    ) -> None:
        """`tree` are the wanted files of the `whole` tree, whose other files may be needed to understand them.

        OptionError if a table exists already with other partitions than are asked for.
        """
        assert lake.writer is not None, "only inside `with`"
        self.run = lake.writer.new_run()
        self.started = time.time()
        self.tree, self.whole, self.selection, self.uncut = tree, whole, selection, uncut
        self.tables = [table for table in tables if folds.family_of(table.name) is None]
        self.folded = [table for table in tables if folds.family_of(table.name) is not None]
        self.chosen = _selection_text(selection)
        loaded = {table.name: lake.load(lake_name(table)) for table in (*tables, FILES, FINDINGS)}
        self.histories: dict[str, History] = {name: history_of(found) for name, found in loaded.items()}
        self.cuts = {table.name: _cuts(loaded[table.name], table, partition_by) for table in self.tables}
        self.folds = {
            table.name: list(folds.due(table.name, whole, self.histories[table.name], self.chosen))
            for table in self.folded
        }
        self.refused: dict[str, str] = {}
        pending = {table.name: self._pending(table) for table in self.tables}
        self.starts: dict[str, dict[str, Taken | None]] = {
            name: {path: taken for path, taken in found.items() if path not in self.refused}
            for name, found in pending.items()
        }
        self.to_inspect = [
            file for file in tree if file.path not in self.refused and self._is_unlike(file, FILES, FINDINGS)
        ]
        looked = {file.path for file in self.to_inspect}
        #: A group is inspected again when one of its files is new or has changed.
        self.groups = [group for group in tree.groups if any(file.path in looked for file in group)]
        self.pieces = self._checked(self._cut(), looked)

    def _checked(self, pieces: list[Piece], looked: set[str]) -> list[Piece]:
        """The same pieces; files that are new as a whole are checked by the pass that decodes them."""
        grown = {path for found in self.starts.values() for path, taken in found.items() if taken is not None}
        made = []
        for piece in pieces:
            file = piece.file
            if file.path in looked and file.path not in grown:
                piece = replace(piece, is_checked=True, near=near(file, self.whole.group_of(file)))
            made.append(piece)
        taken = {piece.file.path for piece in made if piece.is_checked}
        self.to_inspect = [file for file in self.to_inspect if file.path not in taken]
        return made

    def _is_unlike(self, file: File, *tables: Table) -> bool:
        """Whether a file has changed since it was last ingested or inspected."""
        for table in tables:
            taken = self.histories[table.name].sources.get(file.path)
            if taken is None or (taken.size, taken.modified) != (file.size, file.modified) or file.modified is None:
                return True
        return False

    def _pending(self, table: Table) -> dict[str, Taken | None]:
        """The files of which a table lacks some bytes, each with what it has."""
        able, selection = registry.formats_with(table), self.selection.suited(table)
        sources = self.histories[table.name].sources
        pending: dict[str, Taken | None] = {}
        for file in self.whole:
            if file.problem is not None or not selection.takes_file(file):
                continue
            taken = sources.get(file.path)
            if taken is not None:
                if not self._is_unlike(file, table):
                    continue
                # Also asked of a file that no format recognises any more.
                why = _replaced(file, taken)
                if why is not None:
                    self.refused[file.path] = why
                    continue
                if file.size == taken.stop:
                    continue
            if file.format in able and file.place.state is None:
                pending[file.path] = taken
        return pending

    def _cut(self) -> list[Piece]:
        """The pieces of all pending files, each once for all tables that need it."""
        files = {file.path: file for file in self.whole}
        edges: dict[tuple[str, int], list[tuple[int | None, int | None, int]]] = {}
        wanted: dict[tuple[str, int | None, int | None], dict[str, Part]] = {}
        for table in self.tables:
            chosen = self.selection.suited(table)
            asked = asked_of(table, chosen)
            for path, taken in self.starts[table.name].items():
                group = self.whole.group_of(files[path])
                part = whole(files[path], group, table, chosen, asked)
                # Not beyond its size when it was listed: every table sees the same bytes of a file that grows.
                part = replace(part, stop=files[path].size)
                if taken is not None and taken.stop:
                    part = replace(part, start=taken.stop, first=taken.frames)
                begin = (path, 0 if taken is None else taken.stop)
                if begin not in edges:
                    pieces = [part] if path in self.uncut else cut(part, group, LARGEST, reading=False)
                    edges[begin] = [(piece.start, piece.stop, piece.first) for piece in pieces]
                for start, stop, first in edges[begin]:
                    parts = wanted.setdefault((path, start, stop), {})
                    parts[table.name] = replace(part, start=start, stop=stop, first=first)
        order = {path: number for number, path in enumerate(files)}
        found = [Piece(tuple(parts.items())) for parts in wanted.values()]
        return sorted(found, key=lambda piece: (order[piece.file.path], piece.start))

    def notes(self) -> list[str]:
        """Notes on sources that were ingested with another selection."""
        others: dict[str, set[str]] = {}
        for table in self.tables:
            for file in self.tree:
                earlier = self.histories[table.name].selections.get(file.path)
                if earlier is not None and earlier != self.chosen:
                    others.setdefault(earlier, set()).add(file.path)
        return [
            f"{len(paths):,} files were ingested before with {earlier or 'no selection'}; rows left out then stay out"
            for earlier, paths in sorted(others.items())
            if earlier
        ]


def _cuts(found: Any | None, table: Table, partition_by: Sequence[str] | None) -> tuple[Cut, ...]:
    """How a table is partitioned: as it was created, or as asked if it is new."""
    wanted = cuts_of(table, partition_by or ())
    if found is None:
        return wanted
    there = parse_cuts(found)
    if partition_by is not None and there != wanted:
        has = ", ".join(map(str, there)) or "nothing"
        raise OptionError(f"table {lake_name(table)} of the lake exists already, partitioned by {has}")
    return there


def splits_of(items: Sequence[Any], size_of: Callable[[Any], int]) -> list[tuple[Any, ...]]:
    """Runs of items, in order, each large enough for a split."""
    return packed(items, size_of, min(max(sum(map(size_of, items)) // SPLITS, SMALLEST), LARGEST))


def mark(path: str, stop: int) -> int:
    """A checksum of the first and the last bytes before `stop`."""
    try:
        with Source(path) as source:
            head = source.read(0, min(MARK, stop))
            tail = source.read(max(0, stop - MARK), min(MARK, stop))
    except AccessError:
        return 0
    return zlib.crc32(tail, zlib.crc32(head))


def _replaced(file: File, taken: Taken) -> str | None:
    """Why a file is no longer the one that was ingested, or None if it may have grown."""
    if file.size < taken.stop:
        return f"has {file.size:,} bytes, {taken.stop:,} were ingested: it was truncated or replaced"
    if mark(file.path, taken.stop) != taken.mark:
        return "holds other bytes than were ingested: it was rewritten or replaced"
    return None


def _selection_text(selection: Selection) -> str:
    names = ("topics", "topic_pattern", "partitions", "from_offset", "to_offset", "since", "until", "key", "where")
    given = {name: getattr(selection, name) for name in names if getattr(selection, name) not in ((), None)}
    return json.dumps(given, default=repr) if given else ""
