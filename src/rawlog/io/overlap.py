"""Whether two places are the same or one lies inside the other: directories, files, globs and URLs, however they are named."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable
from pathlib import Path

from rawlog.core.errors import AccessError
from rawlog.io.storage import is_remote, local_path, split_query


def first_overlapping(target: str, sources: Iterable[str | os.PathLike[str]]) -> str | None:
    """The first source that is, contains or lies inside a target; None if no source does.

    Symbolic links and `..` are resolved, also in parts of the target that do not exist yet; a glob means what it matches.
    """
    finals = set() if is_remote(target) else _resolved(target)
    return next((name for one in sources if _overlaps(target, finals, name := os.fspath(one))), None)


def precious_inside(path: Path) -> str | None:
    """What of the home and the working directory a directory is or contains, in words; None for neither. The root contains both."""
    final = path.resolve()
    for name, precious in (("home", os.path.expanduser("~")), ("working", os.curdir)):
        try:
            place = Path(precious).resolve()
        except OSError:
            continue  # a working directory that was removed
        if final == place or final in place.parents:
            return f"{'is' if final == place else 'contains'} the {name} directory"
    return None


def _overlaps(target: str, finals: Iterable[Path], source: str) -> bool:
    if is_remote(target) or is_remote(source):
        return is_remote(target) and is_remote(source) and _urls_overlap(target, source)
    return any(_paths_overlap(final, one) for match in _matches(source) for one in _resolved(match) for final in finals)


def _resolved(path: str) -> set[Path]:
    """What a path leads to, and what it leads to if `..` after a symbolic link is taken by the text, as some callers do."""
    local = local_path(path)
    try:
        return {Path(local).resolve(), Path(os.path.abspath(local)).resolve()}
    except (OSError, RuntimeError) as error:  # a loop of symbolic links
        raise AccessError(f"{path}: {error}") from None


def _matches(path: str) -> list[str]:
    local = local_path(path)
    if os.path.lexists(local) or not glob.has_magic(local):
        return [local]
    return glob.glob(local, recursive=True)


def _paths_overlap(target: Path, source: Path) -> bool:
    """Whether one of two resolved paths is or contains the other, by name or, through a second mount, by identity."""
    if target == source or target in source.parents or source in target.parents:
        return True
    found, wanted = _identity(source), _identity(target)
    above_target = found is not None and any(_identity(one) == found for one in (target, *target.parents))
    return above_target or (wanted is not None and any(_identity(one) == wanted for one in source.parents))


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _urls_overlap(target: str, source: str) -> bool:
    (one, one_at), (other, other_at) = _url_parts(target), _url_parts(source)
    if one_at and other_at and one_at != other_at:
        return False  # buckets of one name at two services
    shared = min(len(one), len(other))
    return one[:shared] == other[:shared]


def _url_parts(url: str) -> tuple[list[str], str]:
    """A URL as the parts of a normal path, without who asks, and the service that it names."""
    base, query = split_query(url)
    scheme, _, rest = base.partition("://")
    host, _, path = rest.partition("/")
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    service = re.search(r"[?&]endpoint_override=([^&]*)", query)
    scheme = {"gcs": "gs", "abfss": "abfs", "s3a": "s3"}.get(scheme.lower(), scheme.lower())
    return [scheme, host.rpartition("@")[2].lower(), *parts], service.group(1) if service is not None else ""


__all__ = ["first_overlapping", "precious_inside"]
