"""Catalog: every schema that a registry ever wrote, by id and by subject, as its topic `_schemas` tells.

The state follows from a replay of the topic's records in order. Texts of deleted schemas are kept: the data still needs them.
"""

from __future__ import annotations

import hashlib
import json
import os
import urllib.parse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from rawlog.io.storage import exists, is_remote, local_path, open_regular
from rawlog.io.web import WebError, fetch
from rawlog.model.errors import AccessError, OptionError
from rawlog.model.table import RECORDS
from rawlog.reading.rows import Rows
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree, open_tree

DEFAULT = "."
"""The context of subjects that name none."""
TOPIC = "_schemas"
TYPES = ("AVRO", "JSON", "PROTOBUF")
#: Texts and chains of references beyond these are refused: a schema may come from anywhere.
LARGEST_TEXT = 4 << 20
MOST_REFERENCES = 1000
#: Ids and versions are numbers of 32 bits with a sign; a registry gives none below zero.
LARGEST_NUMBER = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Reference:
    """A schema that another one uses: `name` is what the text calls it."""

    name: str
    subject: str
    version: int


#: A reference, and the context, subject and version that it leads to.
_Use = tuple[Reference, str, str, int]


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema's text. `type` is AVRO, JSON or PROTOBUF."""

    type: str
    text: str
    references: tuple[Reference, ...] = ()
    context: str = DEFAULT
    id: int | None = None
    #: Some fields are encrypted by the client: they stay as they are.
    is_encrypted: bool = False


@dataclass(slots=True)
class Version:
    """A version of a subject. `state` is live, soft_deleted or hard_deleted; `order` is the place of its record in the topic."""

    context: str
    subject: str
    version: int
    schema: Schema
    state: str = "live"
    order: int = 0

    @property
    def name(self) -> str:
        """The subject as its registry names it, with the context unless that is the default one."""
        return self.subject if self.context == DEFAULT else f":{self.context}:{self.subject}"


@dataclass(frozen=True, slots=True)
class SchemaUse:
    """The schema that a record names, and what is known of it. `remark` says why it may be the wrong one."""

    schema: Schema
    subject: str | None = None
    version: int | None = None
    state: str = "live"
    remark: str | None = None


@dataclass(slots=True)
class Catalog:
    """Schemas by (context, id), versions by (context, subject, version). `problems` are records of the topic that say nothing."""

    versions: dict[tuple[str, str, int], Version] = field(default_factory=dict)
    #: All different schemas that an id ever named, the oldest first: ids can be given again.
    by_id: dict[tuple[str, int], list[Schema]] = field(default_factory=dict)
    by_guid: dict[bytes, Schema] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    #: How many versions were deleted whose text is gone.
    lost: int = 0
    #: The versions that an id and a content have.
    _users: dict[tuple[str, int, tuple[object, ...]], list[Version]] = field(default_factory=dict)
    #: The numbers of the versions of each subject.
    _numbers: dict[tuple[str, str], set[int]] = field(default_factory=dict)
    #: The contexts that have a subject.
    _homes: dict[str, dict[str, None]] = field(default_factory=dict)
    #: The contexts that have an id.
    _contexts: dict[int, list[str]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.by_id or self.versions)

    # Filling ---------------------------------------------------------------------------------------------------------

    def add(self, key: bytes | None, value: bytes | None, order: int = 0) -> None:
        """Take in a record of the registry's topic, in the order of the topic. One that says nothing becomes a problem."""
        named = _object(key)
        if named is None or not isinstance(named.get("keytype"), str):
            self.problems.append(f"offset {order}: the key is not one of a schema registry")
            return
        kind = named["keytype"]
        subject, version = named.get("subject"), named.get("version")
        if kind == "SCHEMA" and isinstance(subject, str) and _is_number(version):
            self._add_schema(*split_subject(subject), int(version), value, order)
        elif kind in ("DELETE_SUBJECT", "CLEAR_SUBJECT") and isinstance(subject, str):
            self._delete(kind, *split_subject(subject), _object(value))
        elif kind == "SCHEMA":
            self.problems.append(f"offset {order}: a schema without a valid subject and version")
        elif kind not in ("CONFIG", "MODE", "CONTEXT", "ASSOC", "NOOP"):
            self.problems.append(f"offset {order}: unknown kind of record {kind!r}")

    def _add_schema(self, context: str, subject: str, version: int, value: bytes | None, order: int) -> None:
        key = context, subject, version
        if not value:
            before = self.versions.get(key)
            if before is None:
                self.lost += 1
            else:
                before.state = "hard_deleted"
            return
        about = _object(value)
        schema = None if about is None else _schema(about, context)
        if about is None or schema is None:
            self.problems.append(f"offset {order}: subject {subject!r}, version {version}: not a schema")
            return
        state = "soft_deleted" if about.get("deleted") is True else "live"
        self.put(Version(context, subject, version, schema, state, order), about)

    def put(self, version: Version, about: dict[str, Any] | None = None) -> None:
        """Add a version of a subject, or replace it. `about` is the registry's own description of it."""
        self.versions[version.context, version.subject, version.version] = version
        self._numbers.setdefault((version.context, version.subject), set()).add(version.version)
        self._homes.setdefault(version.subject, {})[version.context] = None
        schema = version.schema
        if schema.id is not None:
            if (schema.context, schema.id) not in self.by_id:
                self._contexts.setdefault(schema.id, []).append(schema.context)
            users = self._users.setdefault((schema.context, schema.id, _content(schema)), [])
            if not users:
                self.by_id.setdefault((schema.context, schema.id), []).append(schema)
            users.append(version)
        guid = guid_of(schema, about or {})
        if guid is not None:
            self.by_guid.setdefault(guid, schema)

    def _delete(self, kind: str, context: str, subject: str, about: dict[str, Any] | None) -> None:
        """Delete versions of a subject. A record without a value, or without a version, deletes none."""
        last = None if about is None else about.get("version")
        for number in self._numbers.get((context, subject), ()) if about is not None else ():
            version = self.versions[context, subject, number]
            if kind == "CLEAR_SUBJECT":
                version.state = "hard_deleted" if version.state == "soft_deleted" else version.state
            elif version.state == "live" and isinstance(last, int) and number <= last:
                version.state = "soft_deleted"

    # Asking ----------------------------------------------------------------------------------------------------------

    def find(self, id: int, topic: str | None, side: str) -> list[SchemaUse]:
        """The schemas that an id may mean in a record of a topic (`side` is key or value), the most credible first; none if unknown."""
        subject = f"{topic}-{side}"
        contexts = self._contexts.get(id, [])
        if not contexts:
            return self._without_id(subject)
        homes = [context for context in contexts if context != DEFAULT and self._has(context, subject, id)]
        remark = None
        if homes:
            context = homes[0]
        elif DEFAULT in contexts:
            context = DEFAULT
        elif len(contexts) == 1 and not self.lost:
            # Where schemas are lost, the id may well be that of a lost one.
            context = contexts[0]
            remark = f"id {id} exists in context {context} only, which is not the topic's own"
        else:
            return []
        schemas = self.by_id[context, id]
        uses = [self._use_of(schema, topic, side, remark) for schema in schemas]
        if len(schemas) > 1:
            uses.sort(key=lambda use: use.state != "live")
            return [
                SchemaUse(use.schema, use.subject, use.version, use.state, f"id {id} was given to several schemas")
                for use in uses
            ]
        return uses

    def _without_id(self, subject: str) -> list[SchemaUse]:
        """The schema of a file that is named after a subject: nothing tells ids, so it is taken for all of them that are not known."""
        return [
            SchemaUse(
                version.schema,
                version.name,
                version.version,
                version.state,
                f"ids are not known: {version.name} is used for its topic",
            )
            for number in sorted(self._numbers.get((DEFAULT, subject), ()))
            if (version := self.versions[DEFAULT, subject, number]).schema.id is None
        ]

    def _has(self, context: str, subject: str, id: int) -> bool:
        """Whether a version of a subject has an id."""
        numbers = self._numbers.get((context, subject), ())
        return any(self.versions[context, subject, number].schema.id == id for number in numbers)

    def find_guid(self, guid: bytes, topic: str | None, side: str) -> list[SchemaUse]:
        """The schema with a GUID; none if unknown."""
        schema = self.by_guid.get(guid)
        return [] if schema is None else [self._use_of(schema, topic, side, None)]

    def _use_of(self, schema: Schema, topic: str | None, side: str, remark: str | None) -> SchemaUse:
        chosen = self.used(schema, topic, side)
        if chosen is None:
            return SchemaUse(schema, None, None, "hard_deleted", remark)
        return SchemaUse(schema, chosen.name, chosen.version, chosen.state, remark)

    def used(self, schema: Schema, topic: str | None, side: str, name: str = "") -> Version | None:
        """The version that a producer of a topic most likely used for a schema; `name` is that of the record or message."""
        content = _content(schema)
        users = (
            self.versions[version.context, version.subject, version.version]
            for version in self._users.get((schema.context, -1 if schema.id is None else schema.id, content), ())
        )
        wanted = (f"{topic}-{side}", f"{topic}-{name}", name)

        def distance(version: Version) -> tuple[int, bool, int]:
            is_near = topic is not None and version.subject.startswith(f"{topic}-")
            near = wanted.index(version.subject) if version.subject in wanted else len(wanted) + (not is_near)
            return near, version.state != "live", -version.version

        return min((version for version in users if _content(version.schema) == content), key=distance, default=None)

    def referenced(self, schema: Schema) -> list[tuple[Reference, Schema]]:
        """The schemas that a schema uses, directly and through others, those that others use first. LookupError for a missing one."""
        uses: dict[_Use, tuple[Reference, Schema]] = {}
        open_: dict[_Use, None] = {}
        todo = [(iter(schema.references), schema.context)]
        while todo:
            reference = next(todo[-1][0], None)
            if reference is None:
                todo.pop()
                if open_:
                    use, _ = open_.popitem()
                    uses[use] = use[0], self.versions[use[1:]].schema
                continue
            use = self._use(reference, todo[-1][1])
            if use in uses:
                continue
            if use in open_:
                raise LookupError(f"subject {use[2]!r} refers to itself")
            if len(uses) + len(open_) >= MOST_REFERENCES:
                raise LookupError(f"more than {MOST_REFERENCES:,} references")
            open_[use] = None
            used = self.versions[use[1:]].schema
            todo.append((iter(used.references), used.context))
        return list(uses.values())

    def _use(self, reference: Reference, around: str) -> _Use:
        """The version that a schema of the context `around` refers to. LookupError if it is not there."""
        context, subject = split_subject(reference.subject)
        use = reference, (around if context == DEFAULT else context), subject, reference.version
        if use[1:] not in self.versions:
            raise LookupError(f"{reference.name}: subject {subject!r}, version {reference.version}, is not there")
        return use

    def latest(self, subject: str) -> Version | None:
        """The newest version of a subject that is not deleted, in any context, the default one first."""
        live = (version for version in self.versions_of(subject) if version.state == "live")
        return max(live, key=lambda version: (version.context == DEFAULT, version.version), default=None)

    def versions_of(self, subject: str) -> Iterator[Version]:
        """The versions of a subject, in all contexts that have it."""
        for context in self._homes.get(subject, ()):
            yield from (self.versions[context, subject, number] for number in sorted(self._numbers[context, subject]))

    def subjects(self) -> Iterator[Version]:
        """Every version of every subject, in order."""
        yield from (self.versions[key] for key in sorted(self.versions))


def split_subject(name: str) -> tuple[str, str]:
    """`:.emea:orders-value` -> the context `.emea` and the subject in it; a plain name is of the default context."""
    if name.startswith(":."):
        context, mark, subject = name[1:].partition(":")
        if mark:
            return context, subject
    return DEFAULT, name


def catalog_of(records: Iterable[tuple[bytes | None, bytes | None, int]]) -> Catalog:
    """The catalog that records of a registry's topic add up to: key, value and offset, in order."""
    catalog = Catalog()
    for key, value, offset in records:
        catalog.add(key, value, offset)
    return catalog


def guid_of(schema: Schema, about: dict[str, Any]) -> bytes | None:
    """The GUID that a registry gives to a schema; None where it depends on more than is known."""
    stored = about.get("md5")
    if isinstance(stored, str):
        import base64
        import binascii

        try:
            guid = base64.b64decode(stored, validate=True)
        except (binascii.Error, ValueError):
            guid = b""
        if len(guid) == 16:
            return guid
    if about.get("metadata") or about.get("ruleSet"):
        return None
    digest = hashlib.md5(schema.text.encode("utf-8", "surrogatepass"), usedforsecurity=False)
    for reference in schema.references:
        digest.update(
            reference.name.encode("utf-8", "surrogatepass") + reference.subject.encode("utf-8", "surrogatepass")
        )
        digest.update((reference.version & 0xFFFF_FFFF).to_bytes(4, "big"))
    return digest.digest()


def _content(schema: Schema) -> tuple[object, ...]:
    return schema.type, schema.text, schema.references


def _object(data: bytes | None) -> dict[str, Any] | None:
    """A JSON object; None for anything else."""
    if data is None or len(data) > LARGEST_TEXT:
        return None
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _is_number(value: Any) -> TypeGuard[int]:
    """Whether a value can be an id or a version."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_NUMBER


def _schema(about: dict[str, Any], context: str) -> Schema | None:
    text, number, kind = about.get("schema"), about.get("id"), about.get("schemaType") or "AVRO"
    listed = about.get("references") or ()
    if (
        not isinstance(text, str)
        or not _is_number(number)
        or kind not in TYPES
        or not isinstance(listed, (list, tuple))
    ):
        return None
    references = []
    for entry in listed:
        if not isinstance(entry, dict) or not _is_number(entry.get("version")):
            return None
        references.append(Reference(str(entry.get("name")), str(entry.get("subject")), int(entry["version"])))
    rules = about.get("ruleSet") or {}
    listed_rules = (
        [*(rules.get("domainRules") or ()), *(rules.get("encodingRules") or ())] if isinstance(rules, dict) else []
    )
    is_encrypted = any(isinstance(rule, dict) and "ENCRYPT" in str(rule.get("type")) for rule in listed_rules)
    return Schema(kind, text, tuple(references), context, int(number), is_encrypted)


# ----------------------------------------------------------------------------------------------------------------------
# Where schemas come from: a registry's topic among the files, a directory of schema files, or a live registry.


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
    catalog = Catalog() if is_remote(source) else _of_files(Path(local_path(source)))
    if not catalog:
        catalog = _of_topic(open_tree(source))
    if not catalog:
        raise AccessError(f"{source}: no schemas: neither a topic {TOPIC} nor files that end in {', '.join(SUFFIXES)}")
    return catalog


def is_registry(source: str) -> bool:
    """Whether schemas come from a live registry."""
    return source.startswith(("http://", "https://"))


def _next_to(tree: Tree) -> Tree:
    """The registry's topic next to the partitions of a tree."""
    groups = {file.place.group.rstrip("/") for file in tree if file.place.group is not None and file.place.topic}
    above = sorted({folder.rpartition("/")[0] for folder in groups if "/" in folder})
    places = [f"{folder}/{TOPIC}-0" for folder in above if exists(f"{folder}/{TOPIC}-0")]
    return open_tree(places) if places else Tree((), ())


def _of_topic(tree: Tree) -> Catalog:
    """Replay the registry's topic. One of another name is known by its keys: all of them are those of a registry's records."""
    names = {file.place.topic for file in tree.files if file.place.topic is not None}
    catalog = Catalog()
    for name in [TOPIC] if TOPIC in names else sorted(topic for topic in names if "schema" in topic.lower()):
        replayed = Catalog()
        for key, value, offset in _records(tree, name):
            replayed.add(key, value, offset)
        if replayed and (name == TOPIC or not replayed.problems):
            for version in replayed.subjects():
                catalog.put(version)
            catalog = replayed if len(names) == 1 or name == TOPIC else catalog
    return catalog


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
    catalog = Catalog()
    files = (
        [path]
        if path.is_file()
        else sorted(source for source in path.rglob("*") if source.suffix in SUFFIXES)
        if path.is_dir()
        else []
    )
    texts = {}
    for source in files:
        if source.suffix not in SUFFIXES:
            continue
        try:
            with os.fdopen(open_regular(source), encoding="utf-8") as file:
                texts[source] = file.read()
        except OSError as error:
            raise AccessError(f"{source}: {error.strerror or error}") from None
        except UnicodeDecodeError as error:
            raise AccessError(f"{source}: {error}") from None
    root = path if path.is_dir() else path.parent
    for source, text in texts.items():
        if _export(catalog, text):
            continue
        name = source.relative_to(root).as_posix()
        subject = name if source.suffix == ".proto" and not source.stem.isdigit() else name[: -len(source.suffix)]
        number = int(source.stem) if source.stem.isdigit() else None
        imports = tuple(_imports(text, texts, root)) if source.suffix == ".proto" else ()
        catalog.put(Version(DEFAULT, subject, 1, Schema(SUFFIXES[source.suffix], text, imports, DEFAULT, number)))
    return catalog


def _imports(text: str, texts: dict[Path, str], root: Path) -> Iterator[Reference]:
    """The files of the same directory that a .proto file imports."""
    import re

    names = {source.relative_to(root).as_posix() for source in texts}
    for name in re.findall(r'^\s*import\s+(?:public\s+|weak\s+)?"([^"]+)"', text, re.MULTILINE):
        if name in names:
            yield Reference(name, name, 1)


def _export(catalog: Catalog, text: str) -> bool:
    """Take in a registry's own list of schemas; False if the text is anything else."""
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError):
        return False
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) and "subject" in row for row in rows):
        return False
    _take(catalog, rows)
    return True


def _take(catalog: Catalog, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        key = json.dumps(
            {"keytype": "SCHEMA", "subject": row.get("subject"), "version": row.get("version"), "magic": 1}
        )
        catalog.add(key.encode(), json.dumps(row).encode())


# A registry -------------------------------------------------------------------------------------------------------------


def _of_registry(url: str) -> Catalog:
    """All schemas of a live registry, deleted ones too. AccessError if it does not answer as one; OptionError for a password in the URL."""
    parts = urllib.parse.urlsplit(url)
    if parts.password is not None or parts.username is not None:
        raise OptionError(
            f"a URL with a password is visible to everybody on this machine: set ${AUTH} to user:password"
        )
    base = url.rstrip("/")
    catalog = Catalog()
    rows = _get(f"{base}/schemas?deleted=true", base)
    if not isinstance(rows, list):
        raise AccessError(f"{base}: no list of schemas")
    _take(catalog, [row for row in rows if isinstance(row, dict)])
    if not catalog:
        raise AccessError(f"{base}: the registry has no schemas")
    return catalog


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
