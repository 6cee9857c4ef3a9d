"""Erasure: which records are to be erased, and the evidence of it: what was removed, what was kept, and what still mentions it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rawlog import registry
from rawlog.io.storage import Source
from rawlog.model.format import File, Keep
from rawlog.model.table import RECORDS
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
            "keys": [bytes_to_json(key) for key in sorted(self.keys)],
            "ids": list(self.ids),
            "find": None if chosen.text is None else bytes_to_json(chosen.text),
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


def bytes_to_json(text: bytes) -> Any:
    """Bytes in JSON: text where they are UTF-8."""
    import base64

    try:
        return text.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(text).decode()}


def bytes_from_json(form: Any) -> bytes:
    """Bytes from their form in JSON."""
    import base64

    return form.encode() if isinstance(form, str) else base64.b64decode(form["base64"])


def _bools(column: pa.Array) -> NDArray[np.bool_]:
    values: NDArray[np.bool_] = pc.fill_null(column, False).to_numpy(zero_copy_only=False)
    return values
