"""Engine: what runs SQL statements; Answer: the result of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from rawlog.core.tables import Column, Table
from rawlog.sql import text
from rawlog.sql.views import Directory, Files, View

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

    def __init__(self, given: Sequence[View]) -> None:
        self.views: Mapping[tuple[str, ...], View] = {name: view for view in given for name in view.names if name}
        # Their names in the engines, which a statement may use as well.
        self._spelled = {("_".join(name),): view for name, view in self.views.items()} | dict(self.views)

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
        return text.rewrite(sql, self._spelled)

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


def spark_type(arrow: pa.DataType) -> str:
    """Spark's name of an Arrow type; Arrow's own name where Spark has no such type."""
    from pyarrow import types

    if types.is_list(arrow) or types.is_large_list(arrow):
        return f"array<{spark_type(arrow.value_type)}>"
    if types.is_map(arrow):
        return f"map<{spark_type(arrow.key_type)},{spark_type(arrow.item_type)}>"
    if types.is_struct(arrow):
        return f"struct<{','.join(f'{field.name}:{spark_type(field.type)}' for field in arrow)}>"
    if types.is_timestamp(arrow):
        return "timestamp"
    simple = {"bool": "boolean", "int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint"}
    simple |= {"halffloat": "float", "date32[day]": "date", "large_string": "string", "large_binary": "binary"}
    return simple.get(str(arrow), str(arrow))
