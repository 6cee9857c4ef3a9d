"""Single files that appear under their names at once, whole, or not at all. What has several files is an Output."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from rawlog.io.output import (
    PathLike,
    refuse_nested,
    sync,
    unwritable,
)
from rawlog.io.stages import staged_file_of
from rawlog.io.storage import (
    exists,
    file_system,
    is_remote,
    local_path,
)
from rawlog.model.errors import ExistsError


@contextlib.contextmanager
def writing(path: PathLike, *, overwrite: bool = False, sources: Iterable[PathLike] = ()) -> Iterator[IO[bytes]]:
    """A file to write that appears under `path` only when the block ends well.

    AccessError if it exists already, unless `overwrite` says to replace it; OptionError if a source would be touched.
    """
    named = os.fspath(path)
    refuse_nested(named, sources)
    if not overwrite and exists(named):
        raise ExistsError(f"{named}: exists already")
    if is_remote(named):
        yield from _writing_remote(named)
        return
    target = os.path.abspath(local_path(named))
    temporary = None
    try:
        temporary, descriptor = staged_file_of(target)
        with os.fdopen(descriptor, "wb") as file:  # the lock on it ends when it is closed: after it has its name
            yield file
            file.flush()
            os.fsync(file.fileno())
            mask = os.umask(0)
            os.umask(mask)
            os.fchmod(file.fileno(), 0o666 & ~mask)
            os.replace(temporary, target)
        sync(Path(target).parent)
    except BaseException as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        if isinstance(error, OSError):
            raise unwritable(named, error) from None
        raise


def _writing_remote(path: str) -> Iterator[IO[bytes]]:
    system, inner = file_system(path)
    temporary = f"{inner}.{os.getpid()}.tmp"
    try:
        with system.open_output_stream(temporary) as file:
            yield file
        system.move(temporary, inner)
    except BaseException as error:
        with contextlib.suppress(OSError):
            system.delete_file(temporary)
        if isinstance(error, OSError):
            raise unwritable(path, error) from None
        raise


def move(path: str, target: str, *, overwrite: bool = False) -> None:
    """Give a file, which is whole, its name in the same file system. AccessError if something of that name exists already."""
    if not overwrite and exists(target):
        raise ExistsError(f"{target}: exists already")
    try:
        if is_remote(target):
            system, inner = file_system(target)
            system.move(file_system(path)[1], inner)
            return
        final = local_path(target)
        os.makedirs(os.path.dirname(os.path.abspath(final)), exist_ok=True)
        sync(Path(local_path(path)))
        os.replace(local_path(path), final)
    except OSError as error:
        raise unwritable(target, error) from None


__all__ = ["move", "writing"]
