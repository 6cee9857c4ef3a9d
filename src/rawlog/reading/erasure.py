"""Erasure: which records are to be erased, the evidence of it, and its certificate: what was removed, kept, and what still mentions it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rawlog import __version__, registry
from rawlog.io.storage import Source
from rawlog.model.errors import AccessError, OptionError
from rawlog.model.finding import (
    Finding,
    Mark,
    Rule,
    Severity,
    rule,
)
from rawlog.model.format import File, Keep
from rawlog.model.table import RECORDS
from rawlog.model.text import binary_value, counted, printable
from rawlog.reading.rows import Rows
from rawlog.reading.select import Selection, holds_text
from rawlog.reading.tree import Tree
from rawlog.reading.where import texts_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rawlog.model.format import Lookup
    from rawlog.model.outline import Reading
    from rawlog.model.store import Rewrite
    from rawlog.reading.select import Transform

# ----------------------------------------------------------------------------------------------------------------------
# Erasure: which records are to be erased, and the evidence of it: what was removed, what was kept, and what still mentions it.

VERB = "erase"
#: Shorter texts are everywhere: files are not searched for them.
LEAST_SEARCHED = 4
#: Files are searched for so many texts at most, and so many places of one text in one file are listed.
MOST_SEARCHED, MOST_PLACES = 1000, 5
WINDOW = 8 << 20
#: The columns that the hashes of records are about.
HASHED = ("key", "value", "headers", "timestamp")


@dataclass(frozen=True, slots=True)
class Erasure:
    """Which records are erased: those that a selection takes; if there are keys or ids, only records with one of these.

    `selection.text` is wanted anywhere in a record. A copy of an erased record is erased too, where the system tells one.
    """

    selection: Selection
    keys: frozenset[bytes] = frozenset()
    ids: tuple[str, ...] = ()
    #: How rows are decoded for `where`, as it was asked for; the transforms of the selection do it.
    decode: Mapping[str, Any] = field(default_factory=dict)

    def rewrite(self, system: str) -> Rewrite:
        """How a system erases."""
        return registry.family(system).store_class.rewrites[VERB]

    def columns(self, system: str) -> tuple[str, ...]:
        """The columns that `mask` looks at, and those that tell copies."""
        kind, lookup = registry.family(system).store_class, registry.lookup(RECORDS, system)
        names = list(self.selection.replace(columns=("offset",)).needed(RECORDS).names)
        for what, values in (("key", self.keys), ("id", self.ids)):
            names += (lookup.columns(RECORDS, what) if lookup is not None else ()) or ("key",) if values else ()
        names += ("key", "headers") if kind.can("copy_ids") else ()
        names += ("value",) if kind.can("part_ids") else ()
        names += ("value",) if self.rewrite(system).content_only else ()
        return tuple(dict.fromkeys(names))

    def mask(self, batch: pa.RecordBatch, system: str) -> NDArray[np.bool_]:
        """Which rows are asked for, without their copies."""
        lookup = registry.lookup(RECORDS, system)
        mask = self.selection.mask(batch, RECORDS)
        if self.keys or self.ids:
            named = self._with_keys(batch, lookup)
            for wanted_id in self.ids if lookup is not None else ():
                named = named | _bools(lookup.by_id(batch, wanted_id))  # type: ignore[union-attr]
            mask = mask & named
        if self.rewrite(system).content_only:
            mask = mask & _bools(pc.is_valid(batch.column("value")))
        return mask

    def _with_keys(self, batch: pa.RecordBatch, lookup: Lookup | None) -> NDArray[np.bool_]:
        if lookup is not None and lookup.by_key is not None:
            mask = np.zeros(batch.num_rows, np.bool_)
            for key in self.keys:
                mask |= _bools(lookup.by_key(batch, key))
            return mask
        if not self.keys:
            return np.zeros(batch.num_rows, np.bool_)
        return _bools(pc.is_in(batch.column("key"), pa.array(sorted(self.keys), pa.binary())))

    def met(self, batch: pa.RecordBatch, system: str, missing: Iterable[bytes | str]) -> set[bytes | str]:
        """Which of some keys and ids rows that are erased have."""
        lookup = registry.lookup(RECORDS, system)
        present: set[bytes | str] = set()
        plain = set(batch.column("key").to_pylist())
        for wanted in missing:
            if isinstance(wanted, str):
                if lookup is not None and _bools(lookup.by_id(batch, wanted)).any():
                    present.add(wanted)
            elif wanted in plain or (
                lookup is not None and lookup.by_key is not None and _bools(lookup.by_key(batch, wanted)).any()
            ):
                present.add(wanted)
        return present

    def as_json(self) -> dict[str, Any]:
        """What was asked, for the certificate."""
        chosen = self.selection
        request: dict[str, Any] = {
            "keys": [binary_value(key) for key in sorted(self.keys)],
            "ids": list(self.ids),
            "find": None if chosen.text is None else binary_value(chosen.text),
            "where": chosen.where,
            "topics": list(chosen.topics),
            "topic_pattern": chosen.topic_pattern,
            "partitions": list(chosen.partitions),
            "from_offset": chosen.from_offset,
            "to_offset": chosen.to_offset,
            "since": chosen.since,
            "until": chosen.until,
            **self.decode,
        }
        return {name: value for name, value in request.items() if value not in (None, [])}

    @classmethod
    def from_json(cls, request: Mapping[str, Any], transforms: tuple[Transform, ...] = ()) -> Erasure:
        """The same from a certificate, with what decodes rows for `where`."""
        names = ("topic_pattern", "where", "from_offset", "to_offset", "since", "until")
        chosen = Selection(
            topics=tuple(request.get("topics", ())),
            partitions=tuple(request.get("partitions", ())),
            text=None if "find" not in request else bytes_from_json(request["find"]),
            replicas="all",
            transforms=transforms,
        ).replace(**{name: request.get(name) for name in names})
        return cls(chosen, frozenset(map(bytes_from_json, request.get("keys", ()))), tuple(request.get("ids", ())))

    def searched(self) -> list[SearchText]:
        """The texts to look for in the bytes of the result. Those of keys and of `where` may be there for another reason."""
        limits = self.selection
        is_everywhere = limits.replace(text=None).takes_every_row and not (
            limits.topics or limits.topic_pattern or limits.partitions or self.keys or self.ids
        )
        texts = [] if limits.text is None else [SearchText(limits.text, is_everywhere)]
        texts += [SearchText(key, False) for key in sorted(self.keys)]
        texts += [SearchText(text.encode(), False) for text in (texts_of(limits.where) if limits.where else ())]
        return [
            searched for searched in dict.fromkeys(texts) if len(searched.text) >= LEAST_SEARCHED or searched.is_strict
        ][:MOST_SEARCHED]


@dataclass(frozen=True, slots=True)
class SearchText:
    """A text that is looked for in bytes. If it is strict it may be nowhere; else only as a whole word, as a hint."""

    text: bytes
    is_strict: bool

    def places(self, data: bytes) -> Iterator[int]:
        """Where it is in some bytes."""
        if self.text not in data:
            return iter(())
        escaped = re.escape(self.text)
        pattern = escaped if self.is_strict else rb"(?<![0-9A-Za-z_])" + escaped + rb"(?![0-9A-Za-z_])"
        return (match.start() for match in re.finditer(pattern, data))

    def rows(self, batch: pa.RecordBatch) -> list[int]:
        """The rows of a batch that have it in a value or a header."""
        rows: set[int] = set()
        for name in ("key", "value", "headers"):
            for row in np.flatnonzero(_bools(holds_text(batch.column(name), self.text))).tolist():
                parts = _parts(batch.column(name)[row].as_py())
                if any(next(self.places(part), None) is not None for part in parts):
                    rows.add(row)
        return sorted(rows)


def _parts(value: Any) -> list[bytes]:
    if isinstance(value, bytes):
        return [value]
    return [
        part for header in value for part in (str(header["key"]).encode("utf-8", "replace"), header["value"] or b"")
    ]


@dataclass(frozen=True, slots=True)
class RemovedRecord:
    """A record that was erased: its place, and a hash of what it held."""

    topic: str | None
    partition: int | None
    offset: int
    sha256: str

    def as_json(self) -> dict[str, Any]:
        return {"topic": self.topic, "partition": self.partition, "offset": self.offset, "sha256": self.sha256}


@dataclass(slots=True)
class Evidence:
    """What a pass over the records of a store found."""

    removed: list[RemovedRecord] = field(default_factory=list)
    kept: dict[tuple[str | None, int | None], Digest] = field(default_factory=dict)
    met: set[bytes | str] = field(default_factory=set)
    #: Records that mention a text that was looked for: the text, topic, partition and offset of the first ones.
    mentions: list[tuple[SearchText, str]] = field(default_factory=list)

    def kept_json(self) -> list[dict[str, Any]]:
        """The records that were kept, by partition."""
        ordered = sorted(self.kept.items(), key=lambda item: (str(item[0][0]), item[0][1] or 0))
        return [{"topic": topic, "partition": partition, **digest.as_json()} for (topic, partition), digest in ordered]


class Digest:
    """Hashes over the records of a partition in their order, however they are cut into batches: of what they hold, and of their offsets."""

    def __init__(self) -> None:
        self.count = 0
        self._hashes: dict[str, Any] = {}
        self._offsets = hashlib.sha256()
        self.has_offsets = True

    def add(self, batch: pa.RecordBatch, *, with_offsets: bool) -> None:
        """Add records."""
        self.count += batch.num_rows
        self.has_offsets &= with_offsets
        self._offsets.update(batch.column("offset").to_numpy().astype(">i8").tobytes())
        for name in HASHED:
            for number, part in enumerate(_byte_parts(batch.column(name))):
                self._hashes.setdefault(f"{name}{number}", hashlib.sha256()).update(part)

    def as_json(self) -> dict[str, Any]:
        whole = hashlib.sha256()
        for name in sorted(self._hashes):
            whole.update(name.encode() + self._hashes[name].digest())
        content: dict[str, Any] = {"records": self.count, "sha256": whole.hexdigest()}
        return content | ({"offsets_sha256": self._offsets.hexdigest()} if self.has_offsets else {})

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("hashes stay where they are made")


def _byte_parts(column: pa.Array) -> Iterator[bytes | memoryview]:
    """The sizes of values (-1: null) and their bytes: one after another the same for any cut of a column."""
    if pa.types.is_list(column.type):
        yield pc.fill_null(pc.list_value_length(column), -1).to_numpy(zero_copy_only=False).astype(">i8").tobytes()
        items = column.flatten()
        for name in ("key", "value"):
            yield from _byte_parts(items.field(name))
        return
    if not (pa.types.is_binary(column.type) or pa.types.is_string(column.type)):
        numbers = pc.fill_null(column.cast(pa.int64()), -(1 << 63))
        yield numbers.to_numpy(zero_copy_only=False).astype(">i8").tobytes()
        return
    yield pc.fill_null(pc.binary_length(column), -1).to_numpy(zero_copy_only=False).astype(">i8").tobytes()
    values = pc.drop_null(column)
    _, offsets, data = values.buffers()
    if data is None or not len(values):
        yield b""
        return
    places = np.frombuffer(offsets, np.int32, len(values) + 1, values.offset * 4)
    yield memoryview(data)[int(places[0]) : int(places[-1])]


def record_hash(row: Mapping[str, Any]) -> str:
    """SHA-256 over key, value and each header's name and value: of each the size in 8 bytes (-1: null), then its bytes."""
    digest = hashlib.sha256()
    parts = [row["key"], row["value"]]
    for header in row["headers"] or ():
        parts += [str(header["key"]).encode("utf-8", "surrogatepass"), header["value"]]
    for part in parts:
        digest.update((-1 if part is None else len(part)).to_bytes(8, "big", signed=True) + (part or b""))
    return digest.hexdigest()


class Chooser:
    """Says which records of a system's stores are erased, with the copies and parts of those that are asked for."""

    def __init__(self, erasure: Erasure, system: str, files: Sequence[File]) -> None:
        """Reads the records of all stores once if the system tells copies: they may be in several. DataError at damage."""
        self.erasure, self.system = erasure, system
        kind = registry.family(system).store_class
        self.copy_ids = kind.copy_ids if kind.can("copy_ids") else None
        self.ids: set[bytes] = set()
        if self.copy_ids is None:
            return
        for batch in rows_of(files, erasure.columns(system)):
            chosen = erasure.mask(batch, system)
            if chosen.any():
                rows = batch.filter(pa.array(chosen))
                for find in (self.copy_ids, kind.part_ids if kind.can("part_ids") else None):
                    ids = find(rows).to_pylist() if find is not None else ()
                    self.ids.update(record_id for record_id in ids if record_id)

    def begun(self) -> Chooser:
        """The same for one store, with transforms that have counted nothing."""
        chooser = copy(self)
        chooser.erasure = replace(self.erasure, selection=self.erasure.selection.begun())
        return chooser

    def mask(self, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        """Which rows are erased."""
        mask = self.erasure.mask(batch, self.system)
        if self.ids and self.copy_ids is not None:
            copies = _bools(pc.is_in(self.copy_ids(batch), pa.array(sorted(self.ids), pa.binary())))
            if self.erasure.rewrite(self.system).content_only:
                copies = copies & _bools(pc.is_valid(batch.column("value")))
            mask = mask | copies
        return mask

    def keep(self) -> Keep:
        """The same for the writer of a store."""
        chosen = self.erasure.selection
        columns = self.erasure.columns(self.system)
        return Keep(columns, lambda batch: ~self.mask(batch), None, None, chosen.max_decompressed, chosen.max_headers)


def rows_of(
    files: Sequence[File], columns: tuple[str, ...], readings: Mapping[str, Reading] | None = None
) -> Iterator[pa.RecordBatch]:
    """The records of files that belong together, whatever became of their transactions. DataError at damage. `readings` are what counts of
    stores whose rows are not read as they are stored.
    """
    tree = Tree((), tuple(files))
    if tree.has(RECORDS):
        rows = Rows(tree, RECORDS, Selection(columns=columns, replicas="all"))
        rows.readings = readings or {}
        yield from rows.batches()


def look(
    files: Sequence[File],
    erasure: Erasure,
    system: str,
    choose: Callable[[pa.RecordBatch], NDArray[np.bool_]],
    *,
    searched: Sequence[SearchText] = (),
    gone: frozenset[tuple[str | None, int | None, int]] = frozenset(),
    readings: Mapping[str, Reading] | None = None,
) -> Evidence:
    """Read all records of a store: those that are chosen, and hashes over the others. `gone` are places whose content was erased."""
    rewrite, evidence = erasure.rewrite(system), Evidence()
    for batch in rows_of(files, RECORDS.names, readings):
        chosen = choose(batch)
        if gone:
            chosen = chosen | _are_at(batch, gone)
        if chosen.any():
            erased = batch.filter(pa.array(chosen))
            wanted: set[bytes | str] = {*erasure.keys, *erasure.ids}
            evidence.met |= erasure.met(erased, system, wanted - evidence.met)
            for row in erased.select(["topic", "partition", "offset", "key", "value", "headers"]).to_pylist():
                place = row["topic"], row["partition"], row["offset"]
                evidence.removed.append(RemovedRecord(*place, record_hash(row)))
        rest = ~chosen & _bools(pc.is_valid(batch.column("value"))) if rewrite.content_only else ~chosen
        kept = batch.filter(pa.array(rest))
        _add_kept(evidence, kept, with_offsets=not rewrite.renumbers)
        for text in searched:
            for number in text.rows(kept) if len(evidence.mentions) < MOST_SEARCHED else ():
                topic, partition, offset = (
                    kept.column(name)[number].as_py() for name in ("topic", "partition", "offset")
                )
                evidence.mentions.append((text, f"{topic} partition {partition} offset {offset:,}"))
    return evidence


def _are_at(batch: pa.RecordBatch, places: frozenset[tuple[str | None, int | None, int]]) -> NDArray[np.bool_]:
    columns = (batch.column(name).to_pylist() for name in ("topic", "partition", "offset"))
    return np.array([place in places for place in zip(*columns, strict=True)], np.bool_)


def _add_kept(evidence: Evidence, batch: pa.RecordBatch, *, with_offsets: bool) -> None:
    """Add rows to the hashes of their partitions."""
    if not batch.num_rows:
        return
    topics, partitions = batch.column("topic").dictionary_encode(), batch.column("partition")
    codes = pc.fill_null(topics.indices.cast(pa.int64()), -1).to_numpy(zero_copy_only=False) << 32
    codes = codes + pc.fill_null(partitions.cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
    for code in np.unique(codes).tolist():
        rows = batch if codes.size == (codes == code).sum() else batch.filter(pa.array(codes == code))
        place = rows.column("topic")[0].as_py(), rows.column("partition")[0].as_py()
        evidence.kept.setdefault(place, Digest()).add(rows, with_offsets=with_offsets)


def search_file(path: str, searched: Sequence[SearchText]) -> Iterator[tuple[SearchText, int]]:
    """Where texts are in the bytes of a file, the first places of each."""
    if not searched:
        return
    overlap = max(len(text.text) for text in searched) + 1
    listed: dict[SearchText, set[int]] = {text: set() for text in searched}
    with Source(path) as source:
        position = 0
        while position < source.size:
            data = bytes(source.read(position, WINDOW + overlap))
            for text, places in listed.items():
                for at in text.places(data) if len(places) < MOST_PLACES else ():
                    if len(places) < MOST_PLACES and position + at not in places:
                        places.add(position + at)
                        yield text, position + at
            position += WINDOW


def bytes_from_json(form: Any) -> bytes:
    """Bytes from their form in JSON."""
    import base64

    return form.encode() if isinstance(form, str) else base64.b64decode(form["base64"])


def _bools(column: pa.Array) -> NDArray[np.bool_]:
    values: NDArray[np.bool_] = pc.fill_null(column, False).to_numpy(zero_copy_only=False)
    return values


# ----------------------------------------------------------------------------------------------------------------------
# The certificate of an erasure: what was asked, removed and kept, with hashes; and the checks of a result against its certificate.

VERSION = 1
PIECE = 8 << 20
#: So many records of a store are listed in the text for people; the JSON has all.
SHOWN = 100
Place = tuple[str | None, int | None, int]


# What is in it -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileHash:
    """A file: its path below the place that was named, its size, and the SHA-256 of its bytes."""

    path: str
    size: int
    sha256: str

    def as_json(self) -> dict[str, Any]:
        return {"path": self.path, "size": self.size, "sha256": self.sha256}


def file_hash(path: str, named: str) -> FileHash:
    """The hash of a file under a name. AccessError if it cannot be read."""
    digest, position = hashlib.sha256(), 0
    with Source(path) as source:
        while piece := source.read(position, PIECE):
            digest.update(piece)
            position += len(piece)
    return FileHash(named, position, digest.hexdigest())


@dataclass(frozen=True, slots=True)
class StoreEvidence:
    """The removed and the kept records of one partition or store."""

    name: str
    system: str
    removed: tuple[dict[str, Any], ...] = ()
    kept: tuple[dict[str, Any], ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "system": self.system, "removed": list(self.removed), "kept": list(self.kept)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> StoreEvidence:
        return cls(fields["name"], fields["system"], tuple(fields["removed"]), tuple(fields["kept"]))

    @property
    def places(self) -> frozenset[Place]:
        """Where the removed records were."""
        return frozenset((record["topic"], record["partition"], record["offset"]) for record in self.removed)


def certificate(
    erasure: Erasure,
    source: Sequence[str],
    target: str,
    *,
    source_files: Iterable[FileHash],
    result_files: Iterable[FileHash],
    stores: Sequence[StoreEvidence],
    absent: Sequence[str | bytes],
    mentions: Sequence[str],
    elsewhere: Sequence[str] = (),
    left_out: Sequence[str] = (),
) -> dict[str, Any]:
    """The certificate of an erasure, for machines. Its own hash is over everything else in it."""
    fields: dict[str, Any] = {
        "certificate": VERSION,
        "rawlog": __version__,
        "made": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "asked": erasure.as_json(),
        "absent": [binary_value(text) if isinstance(text, bytes) else text for text in absent],
        "records_removed": sum(len(store.removed) for store in stores),
        "records_kept": sum(part["records"] for store in stores for part in store.kept),
        "mentions": list(mentions),
        "elsewhere": list(elsewhere),
        "left_out": list(left_out),
        "source": {"paths": list(source), "files": [file.as_json() for file in source_files]},
        "result": {"path": target, "files": [file.as_json() for file in result_files]},
        "stores": [store.as_json() for store in stores],
    }
    return fields | {"sha256": seal(fields)}


def seal(content: Mapping[str, Any]) -> str:
    """The hash of a certificate, without its own."""
    plain = {name: value for name, value in content.items() if name != "sha256"}
    text = json.dumps(plain, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def lines(certificate: Mapping[str, Any]) -> Iterator[str]:
    """The certificate for people."""
    yield "Certificate of erasure"
    yield ""
    yield f"made          {certificate['made']} by rawlog {certificate['rawlog']}"
    yield f"source        {', '.join(map(printable, certificate['source']['paths']))}"
    yield f"result        {printable(certificate['result']['path'])}"
    for name, value in certificate["asked"].items():
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        yield f"asked         {name.replace('_', ' ')}: {printable(text)}"
    for text in certificate["absent"]:
        yield f"absent        {printable(str(text))}: no record had it"
    yield f"removed       {counted(certificate['records_removed'], 'record')}"
    yield f"kept          {counted(certificate['records_kept'], 'record')}"
    yield f"this content  SHA-256 {certificate['sha256']}"
    for note in certificate.get("elsewhere", ()):
        yield f"not erased    {printable(note)}"
    for path in certificate.get("left_out", ()):
        yield f"left out      {printable(path)}: not known, so not read and not copied"
    for note in certificate["mentions"]:
        yield f"still mentioned  {printable(note)}"
    for store in certificate["stores"]:
        yield from _store_lines(store)
    for title in ("source", "result"):
        yield ""
        yield f"Files of the {title}, with SHA-256"
        for file in certificate[title]["files"]:
            yield f"  {file['sha256']}  {file['size']:>14,}  {printable(file['path'])}"
    yield ""
    yield "`rawlog verify RESULT --certificate FILE` checks the result against the JSON form of this certificate."


def _store_lines(store: Mapping[str, Any]) -> Iterator[str]:
    if store["removed"]:
        yield ""
        yield f"Removed from {printable(store['name'] or store['system'])}: topic, partition, offset, SHA-256 of key, value and headers"
        for record in store["removed"][:SHOWN]:
            yield f"  {printable(str(record['topic']))} {record['partition']} {record['offset']} {record['sha256']}"
        if len(store["removed"]) > SHOWN:
            yield f"  and {len(store['removed']) - SHOWN:,} more, which the JSON form lists"
    if store["kept"]:
        yield ""
        yield f"Kept in {printable(store['name'] or store['system'])}: topic, partition, records, SHA-256 over them in their order"
        for part in store["kept"]:
            yield f"  {printable(str(part['topic']))} {part['partition']} {part['records']} {part['sha256']}"


def load(path: str) -> dict[str, Any]:
    """A certificate in its JSON form. OptionError for another file, AccessError for one that cannot be read."""
    try:
        certificate = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise AccessError(f"{path}: {error.strerror or error}") from None
    except ValueError:
        certificate = None
    if not isinstance(certificate, dict) or certificate.get("certificate") != VERSION:
        raise OptionError(f"{path}: not the certificate of an erasure, version {VERSION}, in its JSON form")
    return certificate


#: What a certificate has: a list means each of its items, None for any value.
_FILE = {"path": str, "size": int, "sha256": str}
_PART = {"topic": None, "partition": None, "sha256": str}
_SHAPE: dict[str, Any] = {
    "rawlog": str,
    "made": str,
    "asked": dict,
    "records_removed": int,
    "records_kept": int,
    "source": {"paths": [str], "files": [_FILE]},
    "result": {"path": str, "files": [_FILE]},
    "stores": [{"name": str, "system": str, "removed": [_PART | {"offset": int}], "kept": [_PART | {"records": int}]}],
}


def decode_is_valid(request: Mapping[str, Any]) -> bool:
    """Whether a certificate says in words how rows were decoded, or that they were not."""
    return all(request.get(name) is None or isinstance(request[name], str) for name in ("decode", "schemas"))


def _invalid(certificate: Mapping[str, Any], transforms: tuple[Transform, ...]) -> str | None:
    """The first part of a certificate that cannot be used."""
    try:
        if not decode_is_valid(certificate.get("asked", {})):
            return "asked"
        Erasure.from_json(certificate.get("asked", {}), transforms).selection.check(RECORDS)
    except (OptionError, TypeError, ValueError, KeyError, AttributeError):
        return "asked"
    return _lacking(certificate, _SHAPE)


def _lacking(content: Any, shape: Any, name: str = "content") -> str | None:
    """The first part of a certificate that is missing or of another type."""
    if isinstance(shape, dict):
        if not isinstance(content, dict):
            return name
        lacking = (_lacking(content[key], inner, key) if key in content else key for key, inner in shape.items())
        return next((part for part in lacking if part is not None), None)
    if isinstance(shape, list):
        if not isinstance(content, list):
            return name
        return next((part for item in content if (part := _lacking(item, shape[0], name)) is not None), None)
    return None if shape is None or isinstance(content, shape) else name


# A result and its certificate --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Examination:
    """What a result has: records that were to be erased, the hashes over the others, and texts that were asked for."""

    remains: list[Place] = field(default_factory=list)
    kept: tuple[dict[str, Any], ...] = ()
    mentions: list[tuple[SearchText, str]] = field(default_factory=list)


def examine(files: Sequence[File], store: StoreEvidence, erasure: Erasure) -> Examination:
    """Read the records of a store of the result. DataError at damage."""
    outcome = Examination()
    evidence = look(
        files,
        erasure,
        store.system,
        _still(outcome, erasure, store.system),
        searched=erasure.searched(),
        gone=store.places if erasure.rewrite(store.system).content_only else frozenset(),
    )
    outcome.kept, outcome.mentions = tuple(evidence.kept_json()), evidence.mentions
    return outcome


def _still(outcome: Examination, erasure: Erasure, system: str) -> Callable[[pa.RecordBatch], NDArray[np.bool_]]:
    """Which rows are asked for and are still there; content that was erased is zeros."""
    import numpy as np

    content_only = erasure.rewrite(system).content_only

    def choose(batch: pa.RecordBatch) -> NDArray[np.bool_]:
        mask = erasure.mask(batch, system)
        for row in np.flatnonzero(mask).tolist() if content_only else ():
            mask[row] = bool(batch.column("value")[row].as_py().strip(b"\0"))
        for row in np.flatnonzero(mask).tolist():
            topic, partition, offset = (batch.column(name)[row].as_py() for name in ("topic", "partition", "offset"))
            outcome.remains.append((topic, partition, offset))
        return mask

    return choose


@dataclass(slots=True)
class Checkup:
    """What the rules of certificates see."""

    certificate: Mapping[str, Any]
    tree: Tree
    root: str
    transforms: tuple[Transform, ...] = ()
    _examined: dict[str, Examination] = field(default_factory=dict)

    @property
    def erasure(self) -> Erasure:
        return Erasure.from_json(self.certificate["asked"], self.transforms)

    @property
    def stores(self) -> list[StoreEvidence]:
        return [StoreEvidence.from_json(store) for store in self.certificate["stores"]]

    def examination(self, store: StoreEvidence) -> Examination:
        """What a store of the result has, read once for all rules."""
        if store.name not in self._examined:
            base = f"{self.root}/{store.name}" if store.name else self.root
            files = [file for file in self.tree if file.path == base or file.path.startswith(f"{base}/")]
            readable = [file for file in files if file.system == store.system and file.problem is None]
            self._examined[store.name] = examine(readable, store, self.erasure)
        return self._examined[store.name]

    def path(self, name: str) -> str:
        return f"{self.root}/{name}" if name not in ("", ".") else self.root


@rule("rawlog.certificate.content", Severity.ERROR)
def content(seen: Checkup) -> Iterator[Mark]:
    """The certificate of an erasure was changed: its own hash does not fit its content.

    Nothing that it says can be relied on. Take the certificate from where `rawlog erase` wrote it.
    """
    expected, actual = seen.certificate.get("sha256"), seal(seen.certificate)
    if expected != actual:
        yield Mark("the certificate was changed", expected=expected, found=actual)
    if (lacking := _invalid(seen.certificate, seen.transforms)) is not None:
        yield Mark(f"the certificate has no valid {lacking}")
        return
    for name, count in (
        ("records_removed", sum(len(store.removed) for store in seen.stores)),
        ("records_kept", sum(part["records"] for store in seen.stores for part in store.kept)),
    ):
        if seen.certificate[name] != count:
            yield Mark(
                f"{name} does not fit the stores in the certificate", expected=count, found=seen.certificate[name]
            )


@rule("rawlog.certificate.result", Severity.ERROR)
def result(seen: Checkup) -> Iterator[Mark]:
    """A file of the result of an erasure was changed, removed or added since its certificate was made.

    A broker that started on the result changes its files; check the certificate before that, on a copy. If nobody was to change it, erase
    again from the source.
    """
    listed = {file["path"]: file for file in seen.certificate["result"]["files"]}
    present = {file.path: file for file in seen.tree}
    for name, file in listed.items():
        path = seen.path(name)
        if path not in present:
            yield Mark("a file of the certificate is missing", path=path)
            continue
        sha256 = file_hash(path, name).sha256
        if sha256 != file["sha256"]:
            yield Mark(
                "the file was changed since the certificate was made", path=path, expected=file["sha256"], found=sha256
            )
    names = {seen.path(name) for name in listed}
    yield from (Mark("a file that the certificate does not have", path=path) for path in present if path not in names)


@rule("rawlog.certificate.remains", Severity.ERROR)
def remains(seen: Checkup) -> Iterator[Mark]:
    """Something that was to be erased is in the result: a record, or a text of `--find` in the bytes of a file.

    The text may be in a file that no erasure changes, such as the name of a topic or a setting of the cluster. Records must not be there:
    erase again from the source.
    """
    for store in seen.stores:
        for topic, partition, offset in seen.examination(store).remains:
            yield Mark(
                f"a record that was to be erased: {topic} partition {partition}",
                offset=offset,
                path=seen.path(store.name),
            )
    yield from _texts(seen, is_strict=True)


@rule("rawlog.certificate.kept", Severity.ERROR)
def kept(seen: Checkup) -> Iterator[Mark]:
    """The records of the result are not those that the certificate says were kept.

    Records were lost, changed or added after the erasure, or by it. Compare the result with the source by `rawlog diff`.
    """
    for store in seen.stores:
        yield from differences(store.kept, seen.examination(store).kept, seen.path(store.name))


def differences(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], path: str) -> Iterator[Mark]:
    """Partitions whose hashes over kept records differ."""
    old, new = ({(part["topic"], part["partition"]): part for part in parts} for parts in (before, after))
    for place in sorted({*old, *new}, key=str):
        if old.get(place) != new.get(place):
            counts = [str(part["records"]) if part else "none" for part in (old.get(place), new.get(place))]
            message = f"{place[0]} partition {place[1]}: other records than were kept"
            yield Mark(message, path=path, expected=f"{counts[0]} records", found=f"{counts[1]} records")


@rule("rawlog.certificate.elsewhere", Severity.WARNING)
def elsewhere(seen: Checkup) -> Iterator[Mark]:
    """A part of a log was not among the sources of an erasure, although their files say that it exists: segments of tiered storage.

    What was to be erased may still be there, and a broker serves it. Erase again, with the remote storage among the sources:
    `rawlog erase kafka-logs/ s3://bucket/prefix DST`.
    """
    yield from (Mark(str(text)) for text in seen.certificate.get("elsewhere") or ())


@rule("rawlog.certificate.mention", Severity.INFO)
def mention(seen: Checkup) -> Iterator[Mark]:
    """The text of an erased key, or one that `--where` compares with, is still in the result, outside of the records that were erased.

    It may be a coincidence, or a mention of the same person in a record of another key. `rawlog find TEXT RESULT` shows the records;
    `rawlog erase --find TEXT` erases them.
    """
    yield from _texts(seen, is_strict=False)


def _texts(seen: Checkup, *, is_strict: bool) -> Iterator[Mark]:
    texts = [text for text in seen.erasure.searched() if text.is_strict == is_strict]
    for store in seen.stores:
        for text, where in seen.examination(store).mentions:
            if text.is_strict == is_strict:
                yield Mark(f"{_quote(text)} in a record: {where}", path=seen.path(store.name))
    for file in seen.tree:
        if file.problem is None:
            for text, position in search_file(file.path, texts):
                yield Mark(f"{_quote(text)} in the bytes of the file", position=position, path=file.path)


def _quote(searched: SearchText) -> str:
    return repr(searched.text.decode("utf-8", "backslashreplace"))


RULES: tuple[Rule[Checkup], ...] = (content, result, remains, kept, elsewhere, mention)


def check(
    certificate: Mapping[str, Any], tree: Tree, root: str, transforms: tuple[Transform, ...] = ()
) -> list[Finding]:
    """What is wrong with a result, by its certificate. `transforms` decode rows if the erasure did so. DataError at damage in it."""
    seen = Checkup(certificate, tree, root.rstrip("/"), transforms)
    findings = []
    for certificate_rule in RULES if _invalid(certificate, transforms) is None else (content,):
        for mark in certificate_rule.check(seen):
            findings.append(as_finding(certificate_rule, mark))
    return findings


def as_finding(rule: Rule[Any], mark: Mark) -> Finding:
    """What a rule of certificates found."""
    texts = [None if value is None else str(value) for value in (mark.expected, mark.found)]
    return Finding(
        rule.code, rule.severity, mark.path, None, mark.position, mark.size, mark.offset, mark.message, *texts
    )


def unread(error: Exception) -> Finding:
    """That a result could not be compared with its certificate, because it is damaged."""
    return as_finding(kept, Mark(f"the result cannot be read: {str(error).splitlines()[0]}"))
