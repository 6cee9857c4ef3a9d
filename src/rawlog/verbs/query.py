"""`query`: a question in SQL about files or a lake."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Self, Unpack

from rawlog.engines.choice import choose
from rawlog.model.errors import OptionError, RawlogError
from rawlog.model.job import Progress
from rawlog.model.table import Table
from rawlog.model.text import ROWS, counted, html_note, html_table
from rawlog.model.verb import Option, verb
from rawlog.reading.options import Note, Path, Paths, listed
from rawlog.verbs.options import Asking, log_note, selection_of

if TYPE_CHECKING:
    import pyarrow as pa

    from rawlog.engines.duckdb import Engine

#: Seconds in which a path that does not exist is noticed, before a JVM is started for nothing.
PATIENCE = 0.3


# SQL ----------------------------------------------------------------------------------------------------------------------


class Answer:
    """The rows that a statement gives: iterate over it for dicts, `batches()` gives Arrow, `to_arrow()` all of them.

    Each time it is read, the statement is answered again. Use it as a context manager, or call `close()`, to end its session.
    """

    def __init__(self, engine: Engine, sql: str) -> None:
        """OptionError if the statement is not understood."""
        self.engine, self.sql = engine, sql
        self._answer: Any = engine.ask(sql)
        self.schema: pa.Schema = self._answer.schema
        self.table: Table = self._answer.table

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, one batch at a time. DataError at damage in the files."""
        answer, self._answer = self._answer or self.engine.ask(self.sql), None
        batches: Iterator[pa.RecordBatch] = answer.batches()
        return batches

    def to_arrow(self) -> pa.Table:
        """All rows in memory."""
        import pyarrow as pa

        return pa.Table.from_batches(list(self.batches()), schema=self.schema)

    def close(self) -> None:
        """End the session."""
        self.engine.close()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        import pyarrow as pa

        reader = pa.RecordBatchReader.from_batches(self.schema, self.batches())
        return reader.__arrow_c_stream__(requested_schema)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        from rawlog.reading.rows import dict_rows

        for batch in self.batches():
            yield from dict_rows(batch)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<rawlog.Answer {', '.join(self.schema.names)}>"

    def _repr_html_(self) -> str:
        """The first rows as a table, for a notebook."""
        try:
            rows = list(itertools.islice(self, ROWS + 1))
        except RawlogError as error:
            return html_note(f"{self!r}: {str(error).splitlines()[0]}")
        more = f"the first {ROWS} rows" if len(rows) > ROWS else counted(len(rows), "row")
        return html_table(self.schema.names, (list(row.values()) for row in rows[:ROWS]), more, shows_null=True)


@verb(
    group="ask",
    examples=(
        "rawlog query 'SELECT topic, count(*) FROM records GROUP BY topic' kafka-logs/",
        "rawlog query 'SELECT * FROM old ANTI JOIN new USING (topic, partition, offset)' old=a/ new=b/ --json",
        "rawlog query 'SELECT * FROM findings' --catalog lakehouse",
        "rawlog query 'SELECT kafka_partition(key, 6) AS p, count(*) FROM records GROUP BY p' kafka-logs/ --engine duckdb",
    ),
    more="Exit codes: 0 answered; 1 damage, or some keys or values were not decoded; 2 wrong usage; 3 cannot be read.",
)
def query(
    sql: Annotated[str, "SQL"],
    paths: Annotated[Paths | Mapping[str, Path], Option("PATH", is_required=False)] = (),
    *,
    note: Note | None = None,
    progress: Callable[[Progress], None] | None = None,
    **options: Unpack[Asking],
) -> Answer:
    """Answer a question in SQL; the tables of the paths are views.

    A PATH is files or a lake that `ingest` made. Its views are records, files, findings and the tables of its systems, under their short or
    full names: batches, kafka.batches, kafka.records. With name=PATH they are name.records and so on, and name alone is its records, so
    that one statement can use several paths. `catalog` names a lake by its catalog. SQL - is read from standard
    input.

    Returns an Answer: iterate over it for dicts, or use `to_arrow()`. Several paths may be a dict: its names are schemas (`old.records`).
    `note` gets a sentence about each choice of a replica. OptionError if the SQL is not understood; DataError at damage unless `errors` is
    "skip"; AccessError for a path that does not exist.

    >>> import rawlog
    >>> rows = list(rawlog.query("SELECT count(*) AS n FROM records", "samples/kafka", engine="duckdb"))
    """
    sql = sql.strip().removesuffix(";")
    if not sql.strip():
        raise OptionError("no question: SQL expected")
    session = open_engine(paths, sql, note=note, progress=progress, **options)
    try:
        return Answer(session, sql)
    except BaseException:
        session.close()
        raise


def open_engine(
    paths: Paths | Mapping[str, Path],
    first: str | None = None,
    *,
    catalog: str | None = None,
    engine: str | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | Sequence[str] | None = None,
    errors: str = "raise",
    replicas: str = "best",
    decode: str | Sequence[str] | Mapping[str, str] | None = None,
    schemas: Path | None = None,
    note: Note | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Engine:
    """A session that answers SQL over the views of the paths. What the `first` statement needs is prepared while Spark starts.

    OptionError for options that contradict one another, AccessError for a path that does not exist.
    """
    from rawlog.engines.sql import View, sources, views

    if isinstance(paths, Mapping):
        paths = [f"{name}={os.fspath(path)}" for name, path in paths.items()]
    chosen_sources = sources(listed(paths), catalog)

    def find_views() -> list[View]:
        reading = selection_of({"errors": errors, "replicas": replicas, "decode": decode, "schemas": schemas})
        return [view for source in chosen_sources for view in views(source, reading, note or log_note)]

    chosen = choose(engine=engine, master=master, conf=conf)
    if chosen.name != "spark":
        from rawlog.engines.duckdb import DuckEngine

        return DuckEngine(find_views())
    from rawlog.engines.spark.query import SparkEngine
    from rawlog.engines.spark.session import is_embedded

    embedded = is_embedded(master)
    started: list[Any] = []

    def look() -> SparkEngine:
        spark = SparkEngine(lambda: started[0], find_views(), embedded=embedded)
        if first is not None:
            spark.prepare(first)
        return spark

    # Looking at the paths, and decoding what is small, takes as long as the JVM needs to start: both at once, but a bad path is
    # reported before Spark is started.
    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        with suppress(TimeoutError):
            looking.result(timeout=PATIENCE)
        brief = (
            first is not None
            and catalog is None
            and _are_small(path for source in chosen_sources for path in source.paths)
        )
        started.append(chosen.start(progress, brief=brief))
        return looking.result()


def _are_small(paths: Iterable[str]) -> bool:
    """Whether all files at some paths together are small, without looking further than that."""
    from rawlog.engines.spark.query import SMALL
    from rawlog.io.storage import is_remote, listing

    size = 0
    for path in paths:
        if is_remote(path):
            return False
        for entry in listing(path):
            size += entry.size
            if size > SMALL:
                return False
    return True


# A cluster ----------------------------------------------------------------------------------------------------------------


# The lake -----------------------------------------------------------------------------------------------------------------
