"""Where schemas come from: a registry's topic among the files, a directory of schema files, or a live registry."""

from __future__ import annotations

import json
import os
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rawlog.core.errors import AccessError, OptionError
from rawlog.core.tables import RECORDS
from rawlog.io.storage import exists, is_remote, local_path, open_regular
from rawlog.io.web import WebError, fetch
from rawlog.reading.rows import Rows
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree, open_tree
from rawlog.schemas.catalog import DEFAULT, TOPIC, Catalog, Reference, Schema, Version, split_subject

if TYPE_CHECKING:
    from collections.abc import Iterator

AUTH = "RAWLOG_REGISTRY_AUTH"
"""The environment variable with `user:password` for a registry. It is never part of a URL that is shown."""
SECONDS = 30
LARGEST_ANSWER = 256 << 20
LARGEST_TOPIC = 1 << 30
SUFFIXES = {".avsc": "AVRO", ".proto": "PROTOBUF", ".json": "JSON"}


def catalog_for(tree: Tree, source: str | None = None) -> Catalog:
    """The schemas for the records of a tree: of `source` (a directory, a file or the URL of a registry), else of the registry's topic
    among the files. AccessError if `source` has none, or a registry does not answer.
    """
    if source is None:
        return _of_topic(tree) or _of_topic(_next_to(tree))
    if is_registry(source):
        return _of_registry(source)
    found = Catalog() if is_remote(source) else _of_files(Path(local_path(source)))
    if not found:
        found = _of_topic(open_tree(source))
    if not found:
        raise AccessError(f"{source}: no schemas: neither a topic {TOPIC} nor files that end in {', '.join(SUFFIXES)}")
    return found


def is_registry(source: str) -> bool:
    """Whether schemas come from a live registry."""
    return source.startswith(("http://", "https://"))


def _next_to(tree: Tree) -> Tree:
    """The registry's topic next to the partitions of a tree."""
    groups = {file.place.group.rstrip("/") for file in tree if file.place.group is not None and file.place.topic}
    above = sorted({one.rpartition("/")[0] for one in groups if "/" in one})
    places = [f"{one}/{TOPIC}-0" for one in above if exists(f"{one}/{TOPIC}-0")]
    return open_tree(places) if places else Tree((), ())


def _of_topic(tree: Tree) -> Catalog:
    """Replay the registry's topic. One of another name is known by its keys: all of them are those of a registry's records."""
    names = {file.place.topic for file in tree.files if file.place.topic is not None}
    made = Catalog()
    for name in [TOPIC] if TOPIC in names else sorted(one for one in names if "schema" in one.lower()):
        found = Catalog()
        for key, value, offset in _records(tree, name):
            found.add(key, value, offset)
        if found and (name == TOPIC or not found.problems):
            for version in found.subjects():
                made.put(version)
            made = found if len(names) == 1 or name == TOPIC else made
    return made


def _records(tree: Tree, topic: str) -> Iterator[tuple[bytes | None, bytes | None, int]]:
    selection = Selection(topics=(topic,), columns=("key", "value", "offset"), errors="skip")
    size = 0
    for batch in Rows(tree, RECORDS, selection).batches():
        size += batch.nbytes
        if size > LARGEST_TOPIC:
            raise AccessError(f"topic {topic}: more than {LARGEST_TOPIC:,} bytes; --schemas names another place")
        yield from zip(*(batch.column(name).to_pylist() for name in ("key", "value", "offset")), strict=True)


# Files ------------------------------------------------------------------------------------------------------------------


def _of_files(path: Path) -> Catalog:
    """Schema files below a directory: `<id>.avsc` is the schema of that id, any other name is a subject. A JSON file may also be a list
    of what a registry answers to `GET /schemas`. AccessError for a file that cannot be read.
    """
    made = Catalog()
    files = (
        [path]
        if path.is_file()
        else sorted(one for one in path.rglob("*") if one.suffix in SUFFIXES)
        if path.is_dir()
        else []
    )
    texts = {}
    for one in files:
        if one.suffix not in SUFFIXES:
            continue
        try:
            with os.fdopen(open_regular(one), encoding="utf-8") as file:
                texts[one] = file.read()
        except OSError as error:
            raise AccessError(f"{one}: {error.strerror or error}") from None
        except UnicodeDecodeError as error:
            raise AccessError(f"{one}: {error}") from None
    root = path if path.is_dir() else path.parent
    for one, text in texts.items():
        if _export(made, text):
            continue
        name = one.relative_to(root).as_posix()
        subject = name if one.suffix == ".proto" and not one.stem.isdigit() else name[: -len(one.suffix)]
        number = int(one.stem) if one.stem.isdigit() else None
        own = tuple(_imports(text, texts, root)) if one.suffix == ".proto" else ()
        made.put(Version(DEFAULT, subject, 1, Schema(SUFFIXES[one.suffix], text, own, DEFAULT, number)))
    return made


def _imports(text: str, texts: dict[Path, str], root: Path) -> Iterator[Reference]:
    """The files of the same directory that a .proto file imports."""
    import re

    names = {one.relative_to(root).as_posix() for one in texts}
    for name in re.findall(r'^\s*import\s+(?:public\s+|weak\s+)?"([^"]+)"', text, re.MULTILINE):
        if name in names:
            yield Reference(name, name, 1)


def _export(made: Catalog, text: str) -> bool:
    """Take in a registry's own list of schemas; False if the text is anything else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return False
    if not isinstance(found, list) or not found or not all(isinstance(one, dict) and "subject" in one for one in found):
        return False
    _take(made, found)
    return True


def _take(made: Catalog, rows: list[dict[str, Any]]) -> None:
    for one in rows:
        key = json.dumps(
            {"keytype": "SCHEMA", "subject": one.get("subject"), "version": one.get("version"), "magic": 1}
        )
        made.add(key.encode(), json.dumps(one).encode())


# A registry -------------------------------------------------------------------------------------------------------------


def _of_registry(url: str) -> Catalog:
    """All schemas of a live registry, deleted ones too. AccessError if it does not answer as one; OptionError for a password in the URL."""
    parts = urllib.parse.urlsplit(url)
    if parts.password is not None or parts.username is not None:
        raise OptionError(
            f"a URL with a password is visible to everybody on this machine: set ${AUTH} to user:password"
        )
    base = url.rstrip("/")
    made = Catalog()
    found = _get(f"{base}/schemas?deleted=true", base)
    if not isinstance(found, list):
        raise AccessError(f"{base}: no list of schemas")
    _take(made, [one for one in found if isinstance(one, dict)])
    if not made:
        raise AccessError(f"{base}: the registry has no schemas")
    return made


def _get(url: str, base: str) -> Any:
    secret = os.environ.get(AUTH) or None
    accept = "application/vnd.schemaregistry.v1+json, application/json"
    try:
        data = fetch(url, user=secret, accept=accept, seconds=SECONDS, largest=LARGEST_ANSWER)
    except WebError as error:
        raise AccessError(f"{base}: {error}") from None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise AccessError(f"{base}: the answer is not JSON") from None


__all__ = ["catalog_for", "split_subject"]
