"""A statement of SQL in a process of its own, which is limited and can be ended: no setting of DuckDB bounds all that a statement takes.

One process waits for the next statement, so that it does not wait for imports. The rows come back in frames, as many as are read: a letter,
the size, and an Arrow stream of one batch or a text. What a process sends is data only, never code.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from rawlog.model.errors import (
    AccessError,
    DataError,
    OptionError,
    RawlogError,
)
from rawlog.reading.select import Selection

if TYPE_CHECKING:
    import pyarrow as pa

    from rawlog.engines.sql import View
    from rawlog.pages.browser.files import OpenedPaths
    from rawlog.pages.browser.shell import Ending
    from rawlog.reading.tree import Tree

#: Bytes that DuckDB may use; and that the process may use besides, for reading files.
MEMORY, READING = 192 << 20, 576 << 20
#: Statements that run at the same time.
AT_ONCE = 4
#: Rows of larger batches are sent in several frames.
FRAME = 8 << 20
CANCELLED = "cancelled"
NO_MEMORY = "The statement needs more memory than the browser gives it. `rawlog query` has no such limit."
_HEAD = struct.Struct(">cQ")
_SCHEMA, _ROWS, _ERROR, _DAMAGE, _END = b"S", b"R", b"E", b"D", b"."
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from rawlog.pages.browser.statement import main; main()"
)
#: Few and small reservations of memory: the limit counts those too.
_ENVIRONMENT = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement and what it may read. Damage is an error unless `errors` is skip. At most `rows` rows come back, if that is a number."""

    sql: str
    paths: tuple[str, ...]
    tree: Tree
    errors: str = "raise"
    rows: int | None = None


def views_of(opened: OpenedPaths) -> list[View]:
    """The tables over what was opened."""
    return _views(Statement("", opened.paths, opened.listing().tree, "raise"))


def _views(statement: Statement) -> list[View]:
    from rawlog.engines.sql import Files, Source, views

    all_views = views(Source(None, statement.paths), Selection(errors=statement.errors))
    for directory in {view.rows.directory for view in all_views if isinstance(view.rows, Files)}:
        directory.use(statement.tree)
    return all_views


# The server's side -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """The columns of an answer, and its rows as they come."""

    schema: pa.Schema
    batches: Callable[[], Iterator[pa.RecordBatch]]


class Statements:
    """Runs statements, each in a process of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(AT_ONCE)
        self._spare: subprocess.Popen[bytes] | None = None
        self._running: set[subprocess.Popen[bytes]] = set()
        self._is_closed = False

    def prepare(self) -> None:
        """Start the process that waits for the next statement."""
        with self._lock:
            if self._spare is None and not self._is_closed:
                self._spare = _start()

    @contextlib.contextmanager
    def answering(
        self, statement: Statement, ending: Ending, *, seconds: float, in_all: float | None = None
    ) -> Iterator[Answer]:
        """The answer to a statement. It is cancelled (OptionError) if it is not there after some seconds, and if whoever asked is gone.
        With `in_all` only its columns must be there by then, and the rows after so many seconds.

        OptionError if it is invalid, AccessError if it needs too much memory, DataError at damage.
        """
        if not self._slots.acquire(timeout=seconds):
            raise AccessError("other statements are running; try again when they have ended")
        try:
            process = self._take()
            cancelled = threading.Event()

            def cancel() -> None:
                cancelled.set()
                process.kill()

            ending.call(cancel)
            timers = [_after(seconds, cancel)]
            try:
                _send(process, statement)
                frames = _frames(process, cancelled)
                first = next(frames)
                if in_all is not None:
                    timers[0].cancel()
                    timers.append(_after(in_all, cancel))
                yield Answer(first.schema, lambda: (batch for reader in frames for batch in reader))
            finally:
                for timer in timers:
                    timer.cancel()
                self._ended(process)
        finally:
            self._slots.release()
            self.prepare()

    def _take(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._is_closed:
                raise AccessError("the server is ending")
            process, self._spare = self._spare, None
            if process is None or process.poll() is not None:
                process = _start()
            self._running.add(process)
            return process

    def _ended(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._running.discard(process)
        _end(process)

    def close(self) -> None:
        """End all processes. Whoever waits for an answer gets an error."""
        with self._lock:
            self._is_closed = True
            spare, self._spare = self._spare, None
            for process in self._running:
                process.kill()
        if spare is not None:
            _end(spare)


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _START, json.dumps(sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **_ENVIRONMENT},
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    process.wait()


def _after(seconds: float, call: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()
    return timer


def _send(process: subprocess.Popen[bytes], statement: Statement) -> None:
    assert process.stdin is not None
    data = pickle.dumps(statement)
    with contextlib.suppress(OSError):  # it has ended: reading the answer tells
        process.stdin.write(struct.pack(">Q", len(data)) + data)
        process.stdin.flush()


def _frames(process: subprocess.Popen[bytes], cancelled: threading.Event) -> Iterator[Any]:
    """What a process sends, as Arrow streams: the columns, then the rows. Raises the error that it sends, or that it ended without one."""
    import pyarrow as pa

    assert process.stdout is not None
    while True:
        head = process.stdout.read(_HEAD.size)
        kind, size = _HEAD.unpack(head) if len(head) == _HEAD.size else (b"", 0)
        data = process.stdout.read(size)
        if not kind or len(data) < size:
            if cancelled.is_set():
                raise OptionError(CANCELLED)
            raise AccessError(NO_MEMORY if process.wait() < 0 else "The process of the statement ended.")
        if kind == _END:
            return
        if kind in (_ERROR, _DAMAGE):
            raise (DataError if kind == _DAMAGE else OptionError)(data.decode())
        yield pa.ipc.open_stream(data)


# The side of the process -------------------------------------------------------------------------------------------------


def main() -> None:
    """Wait for a statement, run it, send its rows, and end. The end of the input ends it at any time: the server is gone."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    with contextlib.suppress(ImportError):
        import duckdb  # noqa: F401

        from rawlog.engines import duckdb as duck  # noqa: F401
    size = sys.stdin.buffer.read(8)
    if len(size) < 8:
        os._exit(0)
    statement: Statement = pickle.loads(sys.stdin.buffer.read(struct.unpack(">Q", size)[0]))  # noqa: S301  (the server's)
    threading.Thread(target=_wait_for_end, daemon=True).start()
    _limit()
    with contextlib.suppress(BrokenPipeError):
        _run(statement, out)
    os._exit(0)


def _wait_for_end() -> None:
    sys.stdin.buffer.read(1)
    os._exit(1)


def _limit() -> None:
    """Bound what the process may use from now on. Where the system does not tell what it uses, DuckDB's own limit is all there is."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, ValueError):
        with open("/proc/self/statm", "rb") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        most = used + MEMORY + READING
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _run(statement: Statement, out: IO[bytes]) -> None:
    from rawlog.engines.duckdb import DuckEngine

    try:
        engine = DuckEngine(_views(statement))
        engine.confine(MEMORY)
        answer = engine.ask(statement.sql)
        _put(out, _SCHEMA, _stream(answer.schema))
        left = statement.rows
        for batch in answer.batches():
            for piece in _pieces(batch if left is None else batch.slice(0, left)):
                _put(out, _ROWS, _stream(answer.schema, piece))
            left = None if left is None else left - batch.num_rows
            if left is not None and left <= 0:
                break
        _put(out, _END)
    except MemoryError:
        _put(out, _ERROR, NO_MEMORY.encode())
    except RawlogError as error:
        text = NO_MEMORY if _is_memory(error.__cause__) else str(error)
        _put(out, _DAMAGE if isinstance(error, DataError) else _ERROR, text.encode("utf-8", "replace"))


def _is_memory(cause: BaseException | None) -> bool:
    import duckdb

    return isinstance(cause, (MemoryError, duckdb.OutOfMemoryException))


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.nbytes <= FRAME or batch.num_rows < 2:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _pieces(batch.slice(0, half))
    yield from _pieces(batch.slice(half))


def _stream(schema: pa.Schema, *batches: pa.RecordBatch) -> pa.Buffer:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def _put(out: IO[bytes], kind: bytes, data: bytes | pa.Buffer = b"") -> None:
    out.write(_HEAD.pack(kind, len(data)))
    out.write(data)
    out.flush()
