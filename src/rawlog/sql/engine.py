"""Engine: what runs SQL statements; Answer: the result of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from rawlog.core.tables import JSON, Column, Table, spark_type
from rawlog.sql import text
from rawlog.sql.bounds import Bounds, bounds_of
from rawlog.sql.views import ALL, Directory, Files, View

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a statement: its columns, known at once, and a stream of batches, computed as it is read."""

    schema: pa.Schema
    table: Table
    stream: Callable[[], Iterator[pa.RecordBatch]]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, batch by batch; can be called once. DataError at damage in the files."""
        return self.stream()


class Engine(ABC):
    """A session that knows the views of some sources. Use as a context manager."""

    #: The dialect of its SQL, as sqlglot calls it.
    dialect: str

    def __init__(self, given: Sequence[View]) -> None:
        self.views: Mapping[tuple[str, ...], View] = {name: view for view in given for name in view.names if name}
        self._bounds: tuple[str, bool, Mapping[str, Bounds]] = ("", True, {})
        # Their names in the engines, which a statement may use as well.
        self._spelled = {("_".join(name),): view for name, view in self.views.items()} | dict(self.views)

    #: How fields of JSON texts are written in the engine's SQL.
    spelling = text.Spelling(
        lambda column, type, path: f"{column}.{path}" if "<" in type else f"json_field({column}, '{path}')",
        lambda column, type: f"json_of({column})" if type == "binary" else column,
    )

    @abstractmethod
    def ask(self, sql: str) -> Answer:
        """The result of a statement. OptionError if it is invalid."""

    @abstractmethod
    def cancel(self) -> None:
        """Stop the running statement; from another thread or a signal handler."""

    @abstractmethod
    def functions(self) -> Sequence[str]:
        """The names of the functions that SQL can call."""

    def close(self) -> None:  # noqa: B027 - not all hold something
        """Release what the session holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, sql: str) -> tuple[str, dict[str, View]]:
        """The statement with table names that the engine knows, and the views it uses."""
        rewritten, needed = text.rewrite(sql, self._spelled)
        held = {column.name.lower(): column.type for view in needed.values() for column in view.table.columns}
        texts = {
            name: type for name, type in held.items() if type in ("binary", "string", JSON) or type[:7] == "struct<"
        }
        return text.expand(rewritten, texts, self.spelling), needed

    def bounds(self, rewritten: str, needed: Mapping[str, View], *, utc: bool = True) -> dict[str, Bounds]:
        """Which rows of its views a rewritten statement can need, by name; the same when it is asked again."""
        if self._bounds[:2] != (rewritten, utc):
            tables = {name: view.table for name, view in needed.items()}
            self._bounds = rewritten, utc, bounds_of(rewritten, tables, self.dialect, utc=utc)
        return {name: self._bounds[2].get(name, ALL) for name in needed}

    def hollow(self, sql: str) -> dict[str, View]:
        """All views, for a statement that needs only their names and columns, such as SHOW TABLES; none for other statements."""
        if text.column_words(sql) is not None or self.read(sql)[1]:
            return {}
        return {"_".join(name): view for name, view in self.views.items()}

    def refresh(self) -> None:
        """List the files again: they may have grown."""
        for directory in {id(one): one for one in self._directories()}.values():
            directory.refresh()

    def _directories(self) -> Iterator[Directory]:
        for view in self.views.values():
            if isinstance(view.rows, Files):
                yield view.rows.directory

    def names(self) -> list[str]:
        """The names of the tables, dotted."""
        return sorted({".".join(name) for name in self.views})


def answer_table(schema: pa.Schema) -> Table:
    """The columns of a result as a table."""
    return Table("answer", *(Column(field.name, spark_type(field.type)) for field in schema))
