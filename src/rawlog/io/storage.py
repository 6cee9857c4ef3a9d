"""Storage: bytes by path or URL. Local files by the system's own calls, all else through pyarrow.

Reading is by range into memory the caller owns; writing is in `output`. Nothing here knows a format.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import shlex
import stat
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, Self

from rawlog.model.errors import DENIED, AccessError, LostError, OptionError, refusal

if TYPE_CHECKING:
    from pyarrow import fs


#: What Arrow has a file system for, by the scheme of its URLs.
SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
#: struct flock of Linux: type, origin, start, length, process.
_FLOCK = struct.Struct("hhqqi4x")
#: Inside `remembering`: files of an object store up to this size are fetched whole, and so many bytes of them are kept.
SMALL, REMEMBERED = 1 << 20, 64 << 20
PATIENCE = 20  # seconds that Google's client goes on trying, which would be a quarter of an hour


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file as a listing shows it; `problem` says why it cannot be opened, where that is known already."""

    path: str
    size: int
    modified: float | None
    problem: str | None = None


def is_remote(path: str) -> bool:
    """Whether a path is a URL of another file system than the local one."""
    return "://" in path and not path.startswith("file://")


def local_path(path: str) -> str:
    """A local path without its `file:` scheme."""
    if path.startswith("file://"):
        return path[len("file://") :]
    return path.removeprefix("file:") if path.startswith("file:/") else path


class View(Protocol):
    """Bytes that are a file of their own to readers, and are stored as part of another file, or in another form."""

    def size(self) -> int: ...

    def read_at(self, size: int, position: int) -> bytes:
        """Up to `size` bytes from `position` on, at least one; none after the end. LostError if those at `position` cannot be had."""

    def close(self) -> None: ...


#: In the path of a view, after the path of the file that is really there: `!/`, a word for the kind of view, and what it needs to know.
INSIDE = "!/"


class _Beginning:
    """The first bytes of a file: `PATH!/first/SIZE`."""

    def __init__(self, path: str, size: str) -> None:
        self._source = Source(path)
        self._size = min(self._source.size, int(size))

    def size(self) -> int:
        return self._size

    def read_at(self, size: int, position: int) -> bytes:
        size = min(size, self._size - position)
        try:
            return self._source.read(position, size)
        except LostError as lost:
            if lost.start > position:
                return self._source.read(position, lost.start - position)
            raise

    def close(self) -> None:
        self._source.close()


#: What opens a view, by its kind: (path of the file that is there, what comes after the kind) -> View. Families add their own.
VIEWS: dict[str, Callable[[str, str], View]] = {"first": _Beginning}


def view_path(path: str, kind: str, rest: object) -> str:
    """The path of a view of a file."""
    base, query = split_query(path)
    return f"{base}{INSIDE}{kind}/{rest}{query}"


def is_marked(path: str) -> bool:
    """Whether a path may be that of a view, of whatever kind."""
    return INSIDE in path


def is_view(path: str, kind: str | None = None) -> bool:
    """Whether a path is that of a view, or of one kind of them, not of a file that the system could open."""
    if not is_marked(path):
        return False
    named_kind, mark, _ = split_query(path)[0].rpartition(INSIDE)[2].partition("/")
    if not mark or named_kind not in VIEWS or (kind is not None and named_kind != kind):
        return False
    return is_remote(path) or not os.path.lexists(local_path(path))


def stored_path(path: str) -> str:
    """The file that is really there: of a view, the one that its bytes come from."""
    while is_view(path):
        base, query = split_query(path)
        path = base.rpartition(INSIDE)[0] + query
    return path


def _open_view(path: str) -> View:
    base, query = split_query(path)
    stored, _, rest = base.rpartition(INSIDE)
    kind, _, rest = rest.partition("/")
    return VIEWS[kind](stored + query, rest)


def place_of(path: str) -> object:
    """What two paths of one directory or file have in common, whatever links and mounts lead to it."""
    if is_remote(path):
        return path
    try:
        status = os.stat(local_path(path) or ".")
    except OSError:
        return os.path.realpath(local_path(path))
    return status.st_dev, status.st_ino


class Places:
    """Directories that were met, whatever path led to them."""

    def __init__(self, notes: list[str]) -> None:
        """`notes` gets a sentence about each directory that is met again."""
        self._notes = notes
        self._met: dict[object, str] = {}

    def is_new(self, path: str) -> bool:
        """Whether a directory is met for the first time."""
        place = place_of(path)
        if place in self._met:
            self._notes.append(f"{path} is the same directory as {self._met[place]}: used once")
            return False
        self._met[place] = path
        return True


def refuse_locked(folder: str, lock: str, who: str = "broker") -> None:
    """OptionError if a process has locked the file `lock` of a data directory: `who` is running on it."""
    holder = lock_holder(f"{folder}/{lock}")
    if holder is not None:
        raise OptionError(f"{folder}: process {holder} has it locked: a {who} is running on it. Stop it, or use a copy")


def lock_holder(path: str) -> int | None:
    """The process that has locked a file; None if there is none, or if that cannot be known."""
    if is_remote(path) or sys.platform != "linux":
        return None
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, process = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, request))
    except (OSError, struct.error):
        return None
    return None if kind == fcntl.F_UNLCK else int(process)


def split_query(path: str) -> tuple[str, str]:
    """A path without what a URL asks of its file system, and that with its question mark."""
    base, mark, query = path.partition("?") if is_remote(path) else (path, "", "")
    return base, mark + query


def below(path: str, name: str) -> str:
    """The path of a name in a directory."""
    base, query = split_query(path)
    return f"{base.rstrip('/')}/{name}{query}"


@lru_cache(maxsize=64)
def _file_system(scheme_and_host: str, query: str) -> fs.FileSystem:
    from pyarrow import fs

    if scheme_and_host.startswith(("gs://", "gcs://")) and "retry_limit_seconds" not in query:
        query += f"{'&' if query else '?'}retry_limit_seconds={PATIENCE}"
    return fs.FileSystem.from_uri(f"{scheme_and_host}/x{query}")[0]


def _remote(path: str) -> tuple[fs.FileSystem, str, str, str]:
    """The file system, the path in it, and what to put before and after such a path to make it a URL again."""
    scheme, rest = path.split("://", 1)
    rest, mark, query = rest.partition("?")
    host = rest.split("/", 1)[0]
    user = host[: host.rfind("@") + 1]  # who asks is no part of the path: s3://key:secret@bucket/path
    if scheme not in SCHEMES:
        raise AccessError(f"{path}: not a URL that can be read; known schemes: {', '.join(SCHEMES)}, file")
    try:
        system = _file_system(f"{scheme}://{host}", mark + query)
    except Exception as error:
        raise unreadable(path, error) from None
    return system, rest[len(user) :].rstrip("/"), f"{scheme}://{user}", mark + query


def file_system(path: str) -> tuple[fs.FileSystem, str]:
    """Arrow's file system for a path or URL, and the path in it. AccessError if there is none."""
    if is_remote(path):
        return _remote(path)[:2]
    from pyarrow import fs

    return fs.LocalFileSystem(), local_path(path)


def absent(path: str, what: str = "file or directory") -> AccessError:
    """The error for a path that does not exist, with the nearest directory above it that does, or that one must not look for."""
    error = AccessError(f"{path}: no such {what}")
    if is_remote(path):
        return error.advise("check the bucket and the path")
    try:
        os.lstat(local_path(path))
    except PermissionError as denied:
        return unreadable(path, denied)
    except (OSError, ValueError):
        pass
    above = os.path.dirname(os.path.abspath(local_path(path)))
    while not os.path.isdir(above):
        above = os.path.dirname(above)
    return error.advise(f"ls {shlex.quote(above)}")


def unreadable(path: str, error: BaseException) -> AccessError:
    """What a file system says of a path that cannot be read, as an error of ours."""
    unread = refusal(path, _why(error))
    if is_remote(path):
        unread.advise("check the address, and the credentials in the environment (AWS_ACCESS_KEY_ID, AWS_REGION, …)")
    return unread


def _why(error: BaseException) -> str:
    if isinstance(error, PermissionError):
        return DENIED
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())


#: What a name may stand for instead of a regular file, by the type in its mode.
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def kind_problem(mode: int) -> str | None:
    """Why something of this mode is not opened; None for a regular file."""
    if stat.S_ISREG(mode):
        return None
    return f"is {_KINDS.get(stat.S_IFMT(mode), 'something else')}, not a regular file"


def open_regular(path: str | os.PathLike[str]) -> int:
    """A descriptor to read a local file; OSError for all that is not a regular file.

    To open a named pipe would wait for its writer, to open a device may act on it. What the name stands for may change after the first
    look: so the opening itself never waits, and the descriptor is looked at again.
    """
    local = local_path(os.fspath(path))
    if (problem := kind_problem(os.stat(local).st_mode)) is not None:
        raise OSError(errno.EINVAL, problem)
    descriptor = os.open(local, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    if (problem := kind_problem(os.fstat(descriptor).st_mode)) is not None:
        os.close(descriptor)
        raise OSError(errno.EINVAL, problem)
    return descriptor


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """All bytes of a small local file that nobody named by an option; OSError for all that is not a regular file."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read()


class _Memory(threading.local):
    """The small files that this thread remembers, the oldest first; None outside of `remembering`."""

    files: dict[str, bytes] | None = None

    def keep(self, path: str, data: bytes) -> None:
        assert self.files is not None
        self.files[path] = data
        held = sum(map(len, self.files.values()))
        while held > REMEMBERED:
            held -= len(self.files.pop(next(iter(self.files))))


_memory = _Memory()


@contextmanager
def remembering() -> Iterator[None]:
    """Inside, a small file of an object store is fetched once, by one request, however often this thread opens it."""
    if _memory.files is not None:
        yield
        return
    _memory.files = {}
    try:
        yield
    finally:
        _memory.files = None


class Source:
    """One file opened for reading by range. Use as a context manager."""

    def __init__(self, path: str) -> None:
        """Open `path`; AccessError if it is missing, a directory, or may not be read."""
        self.path = path
        self._fd: int | None = None
        self._file: Any = None
        self._data: bytes | None = None
        try:
            if _memory.files is not None and path in _memory.files:
                self._data = _memory.files[path]
                self.size = len(self._data)
            elif is_view(path):
                self._file = _open_view(path)
                self.size = int(self._file.size())
            elif is_remote(path):
                system, inner, _, _ = _remote(path)
                self._file = system.open_input_file(inner)
                self.size = int(self._file.size())
                if _memory.files is not None and self.size <= SMALL:
                    self._data = self._file.read_at(self.size, 0)
                    self.size = len(self._data)
                    _memory.keep(path, self._data)
            else:
                self._fd = open_regular(path)
                self.size = os.fstat(self._fd).st_size
        except (OSError, ValueError) as error:  # ValueError: a name that cannot be one
            self.close()
            raise unreadable(path, error) from None

    def refresh(self) -> int:
        """The size of the file now (a live log grows)."""
        if self._fd is not None:
            self.size = os.fstat(self._fd).st_size
        return self.size

    def read_into(self, position: int, target: memoryview) -> int:
        """Fill `target` from `position` on; the number of bytes that were there."""
        done = 0
        try:
            while done < len(target):
                if self._fd is not None:
                    got = os.preadv(self._fd, [target[done:]], position + done)
                elif self._data is not None:
                    got = max(0, min(len(target) - done, self.size - position - done))
                    target[done : done + got] = self._data[position + done : position + done + got]
                else:
                    piece = self._file.read_at(len(target) - done, position + done)
                    got = len(piece)
                    target[done : done + got] = piece
                if not got:
                    break
                done += got
        except OSError as error:
            raise AccessError(f"{self.path}: byte {position + done:,}: {_why(error)}") from None
        return done

    def skip_hole(self, position: int) -> int:
        """The first position from `position` on that is not in a hole: bytes that were never written and read as zeros."""
        if self._fd is None or not hasattr(os, "SEEK_DATA"):
            return position
        try:
            return os.lseek(self._fd, position, os.SEEK_DATA)
        except OSError as error:
            # ENXIO: only a hole follows. Anything else: the file system cannot tell.
            return self.size if error.errno == errno.ENXIO else position

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position` on; memory is bounded by what the file holds."""
        size = max(0, min(size, self.size - position))
        target = bytearray(size)
        got = self.read_into(position, memoryview(target))
        return bytes(memoryview(target)[:got])

    def map(self) -> mmap.mmap | None:
        """The whole file in memory that the system fills as it is read; None if it cannot, or the file is empty."""
        return mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ) if self._fd is not None and self.size else None

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def listing(path: str, folders: list[str] | None = None) -> Iterator[ListedFile]:
    """Every file at or below `path`, sorted; a glob is expanded. AccessError if there is nothing of that name.

    Symbolic links are followed. What is to be deleted is listed by `owned_listing`. `folders` gets the local directories below it.
    """
    if is_view(path):
        with Source(path) as source:
            yield ListedFile(path, source.size, None)
        return
    if is_remote(path):
        yield from _remote_listing(path)
        return
    local = local_path(path)
    if os.path.lexists(local):
        yield from _local_listing(local, folders)
        return
    if any(mark in local for mark in "*?["):
        import glob

        names = sorted(glob.glob(local, recursive=True))
        if names:
            for name in names:
                yield from _local_listing(name, folders)
            return
    raise absent(path)


def owned_listing(root: str, path: str) -> Iterator[ListedFile]:
    """Every regular file below the directory `path`, which is below `root`. For what deletes: symbolic links are neither followed nor
    listed, on the way from `root` or below. AccessError if there is no such directory.
    """
    if is_remote(path):
        yield from _remote_listing(path)
        return
    base, local = local_path(root), local_path(path)
    if not os.path.isdir(local):
        raise absent(path, "directory")
    if os.path.realpath(local) != os.path.normpath(os.path.join(os.path.realpath(base), os.path.relpath(local, base))):
        return
    for folder, folders, names in os.walk(local):
        folders.sort()
        for name in sorted(names):
            entry = os.path.join(folder, name)
            if not os.path.islink(entry):
                yield _local_entry(entry)


def is_owned(root: str, path: str) -> bool:
    """Whether a local file is in a directory or below, and not only by a symbolic link that leads out of it."""
    folder = os.path.realpath(os.path.dirname(local_path(path)))
    return f"{folder}/".startswith(f"{os.path.realpath(local_path(root)).rstrip('/')}/")


def _local_listing(path: str, met: list[str] | None) -> Iterator[ListedFile]:
    if not os.path.isdir(path):
        yield _local_entry(path)
        return
    problems: list[OSError] = []
    followed = _Links(path)
    for folder, folders, names in os.walk(path, onerror=problems.append, followlinks=True):
        folders[:] = sorted(name for name in folders if followed.enters(os.path.join(folder, name)))
        if met is not None:
            met += [os.path.join(folder, name) for name in folders]
        for name in sorted(names):
            yield _local_entry(os.path.join(folder, name))
    for problem in problems:
        yield ListedFile(str(problem.filename), 0, None, _why(problem))


class _Links:
    """Which directories a walk enters: a symbolic link is followed, as the real systems do, if it leads out of what is walked.

    What it leads to inside of that is read at its own place. So no file is read twice, and no loop of links is endless.
    """

    def __init__(self, root: str) -> None:
        self.walked = [os.path.realpath(root)]

    def enters(self, path: str) -> bool:
        if not os.path.islink(path):
            return True
        real = os.path.realpath(path)
        for walked in self.walked:
            if os.path.commonpath((real, walked)) in (real, walked):
                return False
        self.walked.append(real)
        return True


def _local_entry(path: str) -> ListedFile:
    try:
        status = os.stat(path)
    except OSError as error:
        why = "dangling symbolic link" if os.path.islink(path) else _why(error)
        return ListedFile(path, 0, None, why)
    if (problem := kind_problem(status.st_mode)) is not None:
        return ListedFile(path, 0, status.st_mtime, problem)
    problem = None if os.access(path, os.R_OK) else DENIED
    return ListedFile(path, status.st_size, status.st_mtime, problem)


def _remote_listing(path: str) -> Iterator[ListedFile]:
    from pyarrow import fs

    system, inner, before, after = _remote(path)
    pattern = None
    if any(mark in inner for mark in "*?["):
        pattern = inner
        parts = inner.split("/")
        inner = "/".join(parts[: next(i for i, part in enumerate(parts) if any(m in part for m in "*?["))])
    try:
        info = system.get_file_info(inner)
        if info.type == fs.FileType.File:
            infos = [info]
        elif info.type == fs.FileType.NotFound:
            raise absent(path)
        else:
            infos = system.get_file_info(fs.FileSelector(inner, recursive=True))
    except AccessError:
        raise
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None
    import fnmatch

    files = sorted((info for info in infos if info.type == fs.FileType.File), key=lambda info: str(info.path))
    if pattern is not None:
        files = [info for info in files if fnmatch.fnmatchcase(info.path, pattern)]
    if pattern is not None and not files:
        raise absent(path)
    for info in files:
        modified = info.mtime_ns / 1e9 if info.mtime_ns else None
        yield ListedFile(f"{before}{info.path}{after}", int(info.size), modified)


def folders_in(path: str) -> list[str]:
    """The names of the directories in a directory, sorted; none if it cannot be listed."""
    try:
        if is_remote(path):
            from pyarrow import fs

            system, inner, _, _ = _remote(path)
            infos = system.get_file_info(fs.FileSelector(inner))
            return sorted(str(info.base_name) for info in infos if info.type == fs.FileType.Directory)
        with os.scandir(local_path(path)) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())
    except (OSError, ValueError):
        return []


def exists(path: str) -> bool:
    """Whether there is a file or directory of that name."""
    if is_remote(path):
        from pyarrow import fs

        system, inner, _, _ = _remote(path)
        try:
            return bool(system.get_file_info(inner).type != fs.FileType.NotFound)
        except (OSError, ValueError) as error:
            raise unreadable(path, error) from None
    return os.path.lexists(local_path(path))
