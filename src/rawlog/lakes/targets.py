"""Outlets: where converted rows go, in splits that are written anywhere and joined once, in one place.

A split is written below a directory of its own; nothing appears under the target's name before `join`.
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rawlog.io.output import Folder, Output, move, unwritable
from rawlog.io.storage import (
    below,
    exists,
    is_remote,
    listing,
    local_path,
    split_query,
)
from rawlog.lakes.loss_check import (
    ColumnLoss,
    LossCheck,
    LossError,
    as_records,
    is_directory,
    writable,
    write,
)
from rawlog.lakes.parquet import Sheet
from rawlog.model.errors import ExistsError, OptionError, unknown
from rawlog.model.format import Format
from rawlog.model.table import RECORDS, Table

if TYPE_CHECKING:
    import pyarrow as pa

    from rawlog.reading.select import Selection

PARQUET_CODECS = ("zstd", "snappy", "gzip", "lz4", "none")
TEXT_CODECS = {"none": "", "gzip": ".gz", "zstd": ".zst"}
FORMS = ("base64", "hex", "escape")
#: The endings that make the target one file and not a directory of files.
ENDINGS = {"parquet": (".parquet",), "jsonl": (".jsonl", ".ndjson", ".json"), "csv": (".csv",)}
PLAIN = tuple(ENDINGS)
OUT = "out"


@dataclass(frozen=True, slots=True)
class WrittenSplit:
    """The result of one split: its directory, the number of rows, what only the outlet understands, and what its rows lose."""

    folder: str
    rows: int
    content: Any = None
    lost: Mapping[str, ColumnLoss] = field(default_factory=dict)
    refused: bool = False


class Outlet(ABC):
    """A target by its name and options, all checked. Picklable."""

    #: The losses that the user accepts, by column.
    accepted: tuple[str, ...] = ()
    #: Whether rows get back what they had before another system's format could not carry it.
    restores: bool = False

    #: Whether several splits may be written at once.
    divides: bool = False
    #: Whether the rows of a partition should be in one split.
    by_partition: bool = False

    def __init__(self, path: str, table: Table, overwrite: bool) -> None:
        self.path = path if is_remote(path) else os.path.abspath(local_path(path))
        #: The rows as they are read, and as they are written: decoded, or only some columns of them.
        self.source = self.table = table
        self.overwrite = overwrite

    def shape(self, selection: Selection) -> None:
        """Write rows as a selection makes them. OptionError if the target takes only whole records."""
        self.table = selection.wanted(self.source)

    @property
    @abstractmethod
    def is_directory(self) -> bool:
        """Whether the target is a directory."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What the rows are written as."""

    @abstractmethod
    def loss_check(self) -> LossCheck:
        """The way of rows into the target, which judges what they lose."""

    @abstractmethod
    def write(self, batches: Iterable[pa.RecordBatch], folder: str, name: str) -> WrittenSplit:
        """Write rows below `folder`, an empty local directory or a URL, under names that contain `name`."""

    def rehearse(self, batches: Iterable[pa.RecordBatch]) -> WrittenSplit:
        """The same without a trace: what rows would lose. EncodeError if they cannot be written."""
        check = self.loss_check()
        try:
            for _ in check.over(batches, restore=self.restores):
                pass
        except LossError:
            return WrittenSplit("", check.rows, None, check.lost, refused=True)
        return WrittenSplit("", check.rows, None, check.lost)

    @abstractmethod
    def join(self, splits: Sequence[WrittenSplit]) -> None:
        """Make all splits, in the order of their rows, appear at the target."""

    def check(self) -> None:
        """AccessError if the target is in the way, before anything is done."""
        if not self.overwrite and exists(self.path) and not self._is_empty():
            raise ExistsError(f"{self.path}: exists already")
        if self.is_directory:
            Output(self.path, overwrite=True).check()

    def _is_empty(self) -> bool:
        return self.is_directory and not is_remote(self.path) and os.path.isdir(self.path) and not os.listdir(self.path)


def outlet(
    to: str,
    path: str,
    *,
    table: Table = RECORDS,
    options: Mapping[str, str] | None = None,
    accepted: Iterable[str] = (),
    overwrite: bool = False,
) -> Outlet:
    """The outlet for a target by the name of its format. OptionError for an unknown one, or for options that it does not have."""
    if to in PLAIN:
        return FileOutlet(to, path, table, options or {}, tuple(accepted), overwrite)
    if to not in _systems() and "." not in to:
        raise unknown("target", to, (*PLAIN, *_systems()))
    if table.name != RECORDS.name:
        raise OptionError(f"table {table.name} goes to {', '.join(PLAIN)}; {to} is made of records")
    format = writable(to)
    kind = SplitOutlet if format.can("splits") else FormatOutlet
    return kind(format, path, options or {}, tuple(accepted), overwrite)


def _systems() -> tuple[str, ...]:
    from rawlog import registry

    return tuple(family.name for family in registry.families() if any(format.is_written for format in family.formats))


def make_stage_directory(folder: str, *, parents: bool = False) -> None:
    """Make a local directory. AccessError if that fails.

    Without `parents` the one above must be there: a task that outlives its job shall not bring back the stage that was removed.
    """
    if not is_remote(folder):
        try:
            if parents:
                os.makedirs(folder, exist_ok=True)
            elif not os.path.isdir(folder):
                os.mkdir(folder)
        except OSError as error:
            raise unwritable(folder, error) from None


# Plain files -------------------------------------------------------------------------------------------------------


class FileOutlet(Outlet):
    """Parquet, JSON lines or CSV: one file if the target's name says so, else a directory with one file for each split."""

    def __init__(
        self,
        kind: str,
        path: str,
        table: Table,
        options: Mapping[str, str],
        accepted: tuple[str, ...],
        overwrite: bool,
    ) -> None:
        super().__init__(path, table, overwrite)
        self.kind = kind
        self.accepted = tuple(table.column(name).name for name in accepted)
        names = ("codec",) if kind == "parquet" else ("codec", "bytes")
        for name in options:
            if name not in names:
                raise unknown(f"option of {kind}", name, names)
        named, _ = split_query(path)
        plain = named.removesuffix("/")
        packed = next((codec for codec, ending in TEXT_CODECS.items() if ending and plain.endswith(ending)), None)
        bare = plain.removesuffix(TEXT_CODECS[packed]) if packed and kind != "parquet" else plain
        self.divides = named.endswith("/") or not bare.endswith(ENDINGS[kind])
        codecs = PARQUET_CODECS if kind == "parquet" else tuple(TEXT_CODECS)
        default = "zstd" if kind == "parquet" else (packed if packed and not self.divides else "none")
        self.codec = options.get("codec", default)
        if self.codec not in codecs:
            raise unknown(f"codec of {kind}", self.codec, codecs)
        self.form = options.get("bytes")
        if self.form is not None and self.form not in FORMS:
            raise unknown("form of bytes", self.form, FORMS)

    @property
    def is_directory(self) -> bool:
        return self.divides

    @property
    def name(self) -> str:
        return self.kind

    @property
    def ending(self) -> str:
        return ENDINGS[self.kind][0] + ("" if self.kind == "parquet" else TEXT_CODECS[self.codec])

    def write(self, batches: Iterable[pa.RecordBatch], folder: str, name: str) -> WrittenSplit:
        make_stage_directory(folder)
        path = below(folder, f"{name}{self.ending}")
        check = self.loss_check()
        rows = check.over(batches, restore=self.restores)
        try:
            count = self._write_parquet(rows, path) if self.kind == "parquet" else self._write_lines(rows, path)
        except LossError:
            return WrittenSplit(folder, check.rows, path, check.lost, refused=True)
        return WrittenSplit(folder, count, path, check.lost)

    def loss_check(self) -> LossCheck:
        """The check of rows for the file. A file of rows keeps all columns: only what could not be read exactly is lost."""
        return LossCheck(Format(name=self.kind, title=self.kind, files=self.ending), {}, self.accepted)

    def _write_parquet(self, batches: Iterable[pa.RecordBatch], path: str) -> int:
        sheet = Sheet(path, self.table, self.codec)
        try:
            for batch in batches:
                sheet.add(batch)
            sheet.close(empty=True)
        except BaseException:
            sheet.discard()
            raise
        return sheet.rows

    def _write_lines(self, batches: Iterable[pa.RecordBatch], path: str) -> int:
        import pyarrow as pa

        from rawlog.io.storage import file_system
        from rawlog.reading import render

        lines = (render.json_lines if self.kind == "jsonl" else render.csv_lines)(self.table.schema, self.form)
        system, inner = file_system(path)
        rows = 0
        try:
            with contextlib.ExitStack() as stack:
                file: Any = stack.enter_context(system.open_output_stream(inner, compression=None))
                if self.codec != "none":
                    file = stack.enter_context(pa.CompressedOutputStream(file, self.codec))
                if self.kind == "csv":
                    file.write(render.csv_header(self.table.schema))
                for batch in batches:
                    for piece in lines.pieces(batch):
                        file.write(piece)
                    rows += batch.num_rows
        except OSError as error:
            raise unwritable(self.path, error) from None
        return rows

    def join(self, splits: Sequence[WrittenSplit]) -> None:
        if not self.divides:
            [split] = splits
            move(split.content, self.path, overwrite=self.overwrite)
            return
        self.check()
        filled = [split for split in splits if split.rows] or list(splits[:1])
        names = [f"part-{number:05d}{self.ending}" for number in range(len(filled))]
        if is_remote(self.path):
            self._join_remote(filled, names)
            return
        if not filled:
            make_stage_directory(self.path, parents=True)
            return
        whole = Folder(Path(filled[0].folder).parent / "whole", named=self.path).make()
        for split, name in zip(filled, names, strict=True):
            whole.take(split.content, name)
        with Output(self.path, overwrite=self.overwrite) as output:
            output.put(whole.path)

    def _join_remote(self, filled: Sequence[WrittenSplit], names: Sequence[str]) -> None:
        """Files one by one: an object store has no other way. Those of before go last, so that nothing is missing in between."""
        from rawlog.io.storage import file_system

        before = [entry.path for entry in listing(self.path)] if exists(self.path) else []
        fresh = [below(self.path, name) for name in names]
        for split, path in zip(filled, fresh, strict=True):
            move(split.content, path, overwrite=True)
        for path in set(before) - set(fresh):
            system, inner = file_system(path)
            system.delete_file(inner)


# Formats -----------------------------------------------------------------------------------------------------------


class FormatOutlet(Outlet):
    """A format that one writer makes: a file, or a directory of several."""

    restores = True

    def __init__(
        self, format: Format, path: str, options: Mapping[str, str], accepted: tuple[str, ...], overwrite: bool
    ) -> None:
        super().__init__(path, RECORDS, overwrite)
        self.format, self.options, self.accepted = format.name, dict(options), accepted
        if format.can("write") and format.can("encode"):
            named = format.match is not None and format.match(path) is not None
            path = path if named or path.endswith("/") else f"{path}/"
        self._directory = is_directory(format, path)
        if self._directory and is_remote(path):
            raise OptionError(f"{path}: {format.family} is written as a directory of files, which needs a local path")
        self.loss_check()

    def shape(self, selection: Selection) -> None:
        """OptionError if rows would not be whole records with their bytes."""
        wanted = [(column.name, column.type) for column in selection.wanted(self.source).columns]
        if wanted != [(column.name, column.type) for column in self.source.columns]:
            raise OptionError(
                f"--decode and --columns go with {', '.join(PLAIN)}; {self.format} is made of whole records"
            )

    @property
    def is_directory(self) -> bool:
        return self._directory

    @property
    def name(self) -> str:
        return self.format

    def loss_check(self) -> LossCheck:
        """The check of rows for the format. OptionError for options that it does not have."""
        return LossCheck(writable(self.format), self.options, self.accepted)

    def write(self, batches: Iterable[pa.RecordBatch], folder: str, name: str) -> WrittenSplit:
        make_stage_directory(folder)
        path = below(folder, name) + ("/" if self._directory else "")
        return self._write_checked(folder, lambda check: self._write_rows(check, batches, path))

    def rehearse(self, batches: Iterable[pa.RecordBatch]) -> WrittenSplit:
        path = self.path + ("/" if self._directory else "")
        return self._write_checked("", lambda check: self._write_rows(check, batches, path, dry_run=True))

    def _write_rows(
        self, check: LossCheck, batches: Iterable[pa.RecordBatch], path: str, *, dry_run: bool = False
    ) -> Any:
        write(check, _records(batches), path, self.options, overwrite=dry_run, dry_run=dry_run)
        return path

    def _write_checked(self, folder: str, make: Any) -> WrittenSplit:
        """What `make` wrote; rows that were refused are reported, not raised: other splits may refuse more."""
        check = self.loss_check()
        try:
            content = make(check)
        except LossError:
            return WrittenSplit(folder, check.rows, None, check.lost, refused=True)
        except OSError as error:
            raise unwritable(self.path, error) from None
        return WrittenSplit(folder, check.rows, content, check.lost)

    def join(self, splits: Sequence[WrittenSplit]) -> None:
        [split] = splits
        if not self._directory:
            move(split.content, self.path, overwrite=self.overwrite)
            return
        self.check()
        with Output(self.path, overwrite=self.overwrite) as output:
            output.put(split.content)


class SplitOutlet(FormatOutlet):
    """A format that is written in splits, one for each partition."""

    divides = True
    by_partition = True

    def check(self) -> None:
        """Nothing here: partitions that exist already are reported one by one, and others may be added."""

    def _write_rows(
        self, check: LossCheck, batches: Iterable[pa.RecordBatch], path: str, *, dry_run: bool = False
    ) -> Any:
        splits = writable(self.format).codec.splits
        if not dry_run:
            make_stage_directory(path)
        folder = Folder(path, named=self.path, dry_run=dry_run)
        return path, splits.write(check.over(_records(batches)), folder, self.options)

    def join(self, splits: Sequence[WrittenSplit]) -> None:
        writer = writable(self.format).codec.splits
        with Output(self.path, overwrite=self.overwrite) as output:
            writer.join([split.content for split in splits], output, self.options)


def _records(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield as_records(batch)
