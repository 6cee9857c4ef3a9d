"""Keys and values decoded: which schema each record names, and its value as JSON text.

A value that cannot be decoded stays as it is, and is counted by reason.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rawlog.values import avro, avro_values, documents, kernels, protobuf
from rawlog.values.avro import SchemaError
from rawlog.values.avro_edit import AvroEditor, Splicer
from rawlog.values.avro_values import Reader, SingleReader
from rawlog.values.documents import DocumentCheck
from rawlog.values.protobuf import MessageEditor
from rawlog.values.protobuf_values import ColumnMessages, JsonMessages, Level, MessageReader, rows_at_once, scan
from rawlog.values.reasons import (
    BAD_HEADER,
    BAD_INDEX,
    BAD_SCHEMA,
    CORRUPT,
    NOT_FRAMED,
    NOT_JSON,
    OTHER_KIND,
    OTHER_SCHEMA,
    REASONS,
    TRUNCATED,
    UNKNOWN_ID,
)
from rawlog.values.registry import Catalog, SchemaUse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rawlog.values.masker import MaskRule
    from rawlog.values.protobuf import MessageSchema

    Numbers = NDArray[np.int64]
    #: What a Protobuf message becomes: columns of a reader, or JSON of a message of a schema.
    Form = MessageReader | tuple[MessageSchema, tuple[int, ...]]
    #: Values of some rows.
    Piece = tuple[Numbers, pa.Array]


# ----------------------------------------------------------------------------------------------------------------------
# Which schema a key or a value names, and where its body begins: a prefix of the bytes, or a header of the record.
# The prefix is byte 0 and an id of 4 bytes, or byte 1 and a GUID of 16; a header has the same. Bytes that only look like a prefix are
# common, so that a framing counts only if its schema is known and the body fits it.


MAGIC_ID, MAGIC_GUID = 0, 1
ID_SIZE, GUID_SIZE = 5, 17
#: How a schema is named: not at all, by an id, by a GUID; or in a way that is damaged.
PLAIN, BY_ID, BY_GUID, TOO_SHORT, WRONG_HEADER = range(5)
HEADERS = {"key": b"__key_schema_id", "value": b"__value_schema_id"}


@dataclass(slots=True)
class Framing:
    """A column of keys or values: how each names its schema, its id, and where its body begins and ends in `data`."""

    data: NDArray[np.uint8]
    kind: NDArray[np.int8]
    id: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    #: Of values whose schema is named in a header: the bytes after the name, which are Protobuf's message indexes.
    rest: dict[int, bytes]
    guid: dict[int, bytes]

    def body(self, row: int) -> bytes:
        """The bytes of a body."""
        return self.data[self.start[row] : self.stop[row]].tobytes()


def frame(column: pa.Array, headers: pa.Array | None, side: str) -> Framing:
    """How every value of a binary column names its schema. `side` is key or value; `headers` is the records' column."""
    count = len(column)
    _, offsets, buffer = column.buffers()
    places = (
        np.frombuffer(offsets, np.int32, count + 1, column.offset * 4).astype(np.int64)
        if count
        else np.zeros(1, np.int64)
    )
    data = np.frombuffer(buffer, np.uint8) if buffer is not None else np.empty(0, np.uint8)
    start, stop = places[:-1].copy(), places[1:].copy()
    kind = np.zeros(count, np.int8)
    ids = np.full(count, -1, np.int64)
    guid: dict[int, bytes] = {}
    valid = column.is_valid().to_numpy(zero_copy_only=False) if count else np.empty(0, np.bool_)
    rest = {} if headers is None else _by_header(headers, HEADERS[side], kind, ids, guid)
    open_ = valid & (kind == PLAIN) & (stop > start)
    rows = np.flatnonzero(open_)
    first = data[start[rows]] if rows.size else np.empty(0, np.uint8)
    sizes = stop[rows] - start[rows]
    zero = rows[first == MAGIC_ID]
    short = zero[sizes[first == MAGIC_ID] < ID_SIZE]
    framed = zero[sizes[first == MAGIC_ID] >= ID_SIZE]
    kind[short] = TOO_SHORT
    if framed.size:
        at = start[framed]
        ids[framed] = sum(data[at + 1 + byte].astype(np.int64) << (8 * (3 - byte)) for byte in range(4))
        kind[framed] = BY_ID
        start[framed] += ID_SIZE
    for row in rows[(first == MAGIC_GUID) & (sizes >= GUID_SIZE)].tolist():
        guid[row] = data[start[row] + 1 : start[row] + GUID_SIZE].tobytes()
        kind[row] = BY_GUID
        start[row] += GUID_SIZE
    kind[~valid] = PLAIN
    assert isinstance(column, (pa.BinaryArray, pa.StringArray))
    return Framing(data, kind, ids, start, stop, rest, guid)


def _by_header(
    headers: pa.Array, name: bytes, kind: NDArray[np.int8], ids: NDArray[np.int64], guid: dict[int, bytes]
) -> dict[int, bytes]:
    """Fill in what headers name; of several with the name the last counts. The bytes after each name, by row."""
    import pyarrow.compute as pc

    rest: dict[int, bytes] = {}
    items = headers.flatten()
    if not len(items):
        return rest
    keys = items.field("key")
    is_named = pc.equal(
        keys, pa.scalar(name.decode(), keys.type) if pa.types.is_string(keys.type) else pa.scalar(name, keys.type)
    )
    chosen = np.flatnonzero(pc.fill_null(is_named, False).to_numpy(zero_copy_only=False))
    if not chosen.size:
        return rest
    sizes = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False)
    rows = np.repeat(np.arange(len(headers)), sizes)
    values = items.field("value")
    for item in chosen.tolist():
        row, value = int(rows[item]), values[item].as_py()
        value = b"" if value is None else bytes(value)
        guid.pop(row, None)
        rest.pop(row, None)
        if len(value) >= ID_SIZE and value[0] == MAGIC_ID:
            kind[row], ids[row], rest[row] = BY_ID, int.from_bytes(value[1:ID_SIZE], "big"), value[ID_SIZE:]
        elif len(value) >= GUID_SIZE and value[0] == MAGIC_GUID:
            kind[row], guid[row], rest[row] = BY_GUID, value[1:GUID_SIZE], value[GUID_SIZE:]
        else:
            kind[row] = WRONG_HEADER
    return rest


HOW = ("auto", "avro", "protobuf", "json", "string", "raw")
SCHEMA = pa.struct([("id", pa.int32()), ("subject", pa.string()), ("version", pa.int32())])

_REASON = {name: number for number, name in enumerate(REASONS)}
_STATUS = {kernels.TRUNCATED: TRUNCATED, kernels.CORRUPT: CORRUPT, kernels.LIMIT: CORRUPT}


class DecodedValues:
    """A side of some records: which were decoded, with which schema, and why the others were not.

    Values are collected in pieces, some rows each, as JSON texts or as columns; next to them there may be columns of topics.
    """

    def __init__(self, count: int, framing: Framing | None = None) -> None:
        self.count, self.framing = count, framing
        self.is_decoded = np.zeros(count, np.bool_)
        #: For each row a number of `used` or of `REASONS`; -1: none.
        self.schema = np.full(count, -1, np.int64)
        self.why = np.full(count, -1, np.int64)
        self.used: list[SchemaUse] = []
        self._numbers: dict[SchemaUse, int] = {}
        self.pieces: list[Piece] = []
        #: By topic: values as columns of its schema.
        self.topics: dict[str | None, list[Piece]] = {}
        #: Of Protobuf: the full names of messages and their index paths, by row.
        self.messages: dict[int, tuple[str, tuple[int, ...]]] = {}
        self.trailing: dict[int, int] = {}

    def failed(self, rows: Numbers | int, reason: str) -> None:
        """Note why rows were not decoded."""
        self.why[rows] = _REASON[reason]

    def done(self, rows: Numbers, values: pa.Array, schema: SchemaUse | None) -> None:
        """Take values of rows that were decoded with one schema, or without any."""
        if not rows.size:
            return
        self.is_decoded[rows], self.why[rows] = True, -1
        if schema is not None:
            self.schema[rows] = self._numbers.setdefault(schema, len(self._numbers))
            self.used = list(self._numbers)
        self.pieces.append((rows, values))

    def values(self, type: pa.DataType) -> pa.Array:
        """The decoded values in order, null where there is none."""
        return _in_order(self.pieces, self.count, type)

    def topic_values(self, topic: str, type: pa.DataType) -> pa.Array:
        """The same as columns of a topic's schema."""
        return _in_order(self.topics.get(topic, ()), self.count, type)

    def has_columns(self) -> NDArray[np.bool_]:
        """Which rows have values in the columns of their topic."""
        has_value = np.zeros(self.count, np.bool_)
        for pieces in self.topics.values():
            for rows, _ in pieces:
                has_value[rows] = True
        return has_value

    def schemas(self) -> pa.Array:
        """What was used for each row: id, subject and version."""
        rows = [{"id": use.schema.id, "subject": use.subject, "version": use.version} for use in self.used]
        return pa.array(rows, SCHEMA).take(pa.array(self.schema, mask=self.schema < 0))

    def errors(self) -> pa.Array:
        """Why rows were not decoded; null for those that were, and for those without a schema."""
        return pa.array(list(REASONS)).take(pa.array(self.why, mask=self.why < 0))

    def schema_of(self, row: int) -> SchemaUse | None:
        """The schema that was used for a row."""
        return self.used[self.schema[row]] if self.schema[row] >= 0 else None

    def body_size(self, row: int) -> int:
        """The size of a row's body: all after what names its schema, with Protobuf's message indexes if they are there."""
        assert self.framing is not None
        return int(self.framing.stop[row] - self.framing.start[row])

    def has_header(self, row: int) -> bool:
        """Whether a header of the record names the schema."""
        assert self.framing is not None
        return row in self.framing.rest

    def reason(self, row: int) -> str | None:
        """Why a row was not decoded."""
        return list(REASONS)[self.why[row]] if self.why[row] >= 0 else None


def _in_order(pieces: Sequence[Piece], count: int, type: pa.DataType) -> pa.Array:
    """Values of all rows, null where there is none."""
    if not pieces:
        return pa.nulls(count, type)
    whole = pa.concat_arrays([array for _, array in pieces])
    if len(whole) == count and len(pieces) == 1:
        return whole
    place = np.full(count, -1, np.int64)
    place[np.concatenate([rows for rows, _ in pieces])] = np.arange(len(whole))
    return whole.take(pa.array(place, mask=place < 0))


@dataclass(slots=True)
class _Work:
    """What is decoded: the framed values of one side, how, and where the result goes."""

    framing: Framing
    side: str
    how: str
    result: DecodedValues
    reader: Reader | MessageReader | None
    topic_readers: Mapping[str, Reader | MessageReader]
    with_text: bool
    #: The topic of the rows that are decoded now.
    topic: str | None = None
    #: Whether a value must end where its bytes end.
    is_whole: bool = False

    @property
    def topic_reader(self) -> Reader | MessageReader | None:
        """The columns of the topic."""
        return None if self.topic is None else self.topic_readers.get(self.topic)

    def add_columns(self, rows: Numbers, values: pa.Array) -> None:
        """Take values as columns of the topic."""
        if rows.size:
            self.result.topics.setdefault(self.topic, []).append((rows, values))


class ValueDecoder:
    """Decodes sides of records with the schemas of a catalog. What it makes of a schema is kept."""

    def __init__(self, catalog: Catalog, wishes: Mapping[str, str]) -> None:
        self.catalog, self.wishes = catalog, dict(wishes)
        self._cache: dict[tuple[Any, ...], Any] = {}

    def __getstate__(self) -> tuple[Catalog, dict[str, str]]:
        return self.catalog, self.wishes

    def __setstate__(self, state: tuple[Catalog, dict[str, str]]) -> None:
        self.catalog, self.wishes = state
        self._cache = {}

    def decode(
        self,
        column: pa.Array,
        headers: pa.Array | None,
        topics: pa.Array,
        side: str,
        reader: Reader | MessageReader | None = None,
        *,
        topic_readers: Mapping[str, Reader | MessageReader] | None = None,
        with_text: bool = True,
    ) -> DecodedValues:
        """The values of a binary column of records: as JSON texts, or as columns of a `reader` schema; and in the same pass as columns of
        the schemas of topics. A way other than auto takes only values of that kind. Without text it is only known which were decoded;
        those of Avro are null.
        """
        how = self.wishes.get(side, "raw")
        if how in ("raw", "string") or not len(column):
            return DecodedValues(len(column))
        framing = frame(column, headers, side)
        result = DecodedValues(len(column), framing)
        work = _Work(framing, side, how, result, reader, topic_readers or {}, with_text)
        encoded = topics if pa.types.is_dictionary(topics.type) else topics.dictionary_encode()
        names = [*encoded.dictionary.to_pylist(), None]
        codes = encoded.indices.fill_null(len(names) - 1).to_numpy(zero_copy_only=False)
        if how == "auto":  # records that Kafka writes for itself name no schemas
            internal = [number for number, name in enumerate(names) if (name or "").startswith("__")]
            framing.kind[np.isin(codes, internal)] = PLAIN
            framing.guid = {row: guid for row, guid in framing.guid.items() if framing.kind[row] == BY_GUID}
        if how != "json":
            result.failed(np.flatnonzero(framing.kind == TOO_SHORT), NOT_FRAMED)
        result.failed(np.flatnonzero(framing.kind == WRONG_HEADER), BAD_HEADER)
        self._by_id(work, codes, names)
        self._by_guid(work, codes, names)
        if how == "json":
            self._plain_json(column, work)
        return result

    # Schemas ------------------------------------------------------------------------------------------------------------

    def _by_id(self, work: _Work, codes: NDArray[Any], topics: list[str | None]) -> None:
        rows = np.flatnonzero(work.framing.kind == BY_ID)
        if not rows.size:
            return
        both = codes[rows].astype(np.int64) << 32 | work.framing.id[rows]
        order = np.argsort(both, kind="stable")  # data that is not of a registry may have another id in each row
        keys, starts = np.unique(both[order], return_index=True)
        for key, group in zip(keys.tolist(), np.split(rows[order], starts[1:]), strict=True):
            number, topic = key & 0xFFFF_FFFF, topics[key >> 32]
            self._group(group, self._find(number, topic, work.side), replace(work, topic=topic))

    def _find(self, id: int, topic: str | None, side: str) -> list[SchemaUse]:
        key = "find", id, topic, side
        uses: list[SchemaUse] = self._cache.get(key) or self.catalog.find(id, topic, side)
        if uses:
            self._cache[key] = uses
        return uses

    def _by_guid(self, work: _Work, codes: NDArray[Any], topics: list[str | None]) -> None:
        groups: dict[tuple[bytes, int], list[int]] = {}
        for row, guid in work.framing.guid.items():
            groups.setdefault((guid, int(codes[row])), []).append(row)
        for (guid, code), rows in groups.items():
            uses = self.catalog.find_guid(guid, topics[code], work.side)
            self._group(np.array(rows, np.int64), uses, replace(work, topic=topics[code]))

    def _named(self, use: SchemaUse, work: _Work, name: str) -> SchemaUse:
        """The same schema with the subject that was used, now that the name of the record or message is known."""
        key = "named", use, work.topic, work.side, name
        if key not in self._cache:
            version = self.catalog.used(use.schema, work.topic, work.side, name)
            self._cache[key] = (
                use
                if version is None
                else replace(use, subject=version.name, version=version.version, state=version.state)
            )
        named: SchemaUse = self._cache[key]
        return named

    def _group(self, rows: Numbers, uses: list[SchemaUse], work: _Work) -> None:
        """Decode rows of a topic that name the same schema. Where an id was given twice, each schema is tried in turn, and one that leaves
        bytes over only if no other fits.
        """
        if not uses:
            work.result.failed(rows, UNKNOWN_ID)
            return
        attempts = [(use, work) for use in uses]
        if len(uses) > 1:
            attempts = [(use, replace(work, is_whole=True)) for use in uses] + attempts
        for use, attempt in attempts:
            if work.how != "auto" and use.schema.type != work.how.upper():
                work.result.failed(rows, OTHER_KIND)
                continue
            try:
                self._decode_rows(use, rows, attempt)
            except (SchemaError, LookupError):
                work.result.failed(rows, BAD_SCHEMA)
            rows = rows[~work.result.is_decoded[rows]]
            if not rows.size:
                return

    def _decode_rows(self, use: SchemaUse, rows: Numbers, work: _Work) -> None:
        """Decode rows with one schema. SchemaError or LookupError if it cannot be used."""
        wanted = {Reader: "AVRO", MessageReader: "PROTOBUF"}.get(type(work.reader), use.schema.type)
        if wanted != use.schema.type:
            work.result.failed(rows, OTHER_SCHEMA)
        elif use.schema.type == "PROTOBUF":
            self._messages(use, rows, work)
        elif use.schema.type == "AVRO":
            self._avro(use, rows, work)
        else:
            self._documents(use, rows, work)

    # Avro ---------------------------------------------------------------------------------------------------------------

    def _avro(self, use: SchemaUse, rows: Numbers, work: _Work) -> None:
        maker: avro.Program | SingleReader = self._maker(use)
        named = self._named(use, work, maker.type.name or maker.type.kind)
        if isinstance(maker, SingleReader):
            if work.reader is not None:
                work.result.failed(rows, OTHER_SCHEMA)
                return
            self._single_bodies(maker, named, rows, work)
            return
        step = avro.rows_at_once(maker)
        for first in range(0, rows.size, step):
            self._many_bodies(maker, named, rows[first : first + step], work)

    def _many_bodies(self, program: avro.Program, named: SchemaUse, rows: Numbers, work: _Work) -> None:
        """Rows that were written with one Avro schema: walked once, for text and columns."""
        framing, result = work.framing, work.result
        entries = avro.run(program, framing.data, framing.start[rows], framing.stop[rows])
        if work.is_whole:
            entries.status[(entries.status == kernels.OK) & (entries.ends != framing.stop[rows])] = kernels.CORRUPT
        is_read = entries.status == kernels.OK
        for status, reason in _STATUS.items():
            result.failed(rows[entries.status == status], reason)
        if isinstance(work.topic_reader, Reader):
            with suppress(SchemaError):  # there is the text
                columns, fits = work.topic_reader.columns(program.type, entries, is_read)
                work.add_columns(rows[fits], columns if fits.all() else columns.filter(pa.array(fits)))
        if isinstance(work.reader, Reader):
            try:
                values, is_good = work.reader.columns(program.type, entries, is_read)
            except SchemaError:
                result.failed(rows[is_read], OTHER_SCHEMA)
                return
            result.failed(rows[is_read & ~is_good], OTHER_SCHEMA)
        elif work.with_text:
            values, is_good = avro_values.texts(program.type, entries, is_read)
            result.failed(rows[is_read & ~is_good], CORRUPT)
        else:
            values, is_good = pa.nulls(rows.size, pa.string()), is_read
        result.done(rows[is_good], values if is_good.all() else values.filter(pa.array(is_good)), named)
        after = framing.stop[rows] - entries.ends
        for place in np.flatnonzero(is_good & (after != 0)).tolist():
            result.trailing[int(rows[place])] = int(after[place])

    def _single_bodies(self, reader: SingleReader, named: SchemaUse, rows: Numbers, work: _Work) -> None:
        """Rows of a schema without columns."""
        good, texts = [], []
        for row in rows.tolist():
            status, text, left = reader.read(work.framing.body(row))
            if left and work.is_whole:
                status = kernels.CORRUPT
            if status != kernels.OK:
                work.result.failed(row, _STATUS[status])
                continue
            good.append(row)
            texts.append(text)
            if left:
                work.result.trailing[row] = left
        work.result.done(np.array(good, np.int64), pa.array(texts, pa.string()), named)

    # JSON ---------------------------------------------------------------------------------------------------------------

    def _documents(self, use: SchemaUse, rows: Numbers, work: _Work) -> None:
        """JSON with a schema."""
        framing = work.framing
        numbers, texts = documents.texts(framing.data, framing.start[rows], framing.stop[rows])
        work.result.failed(rows, CORRUPT)
        work.result.done(rows[numbers], texts, self._named(use, work, ""))

    def _plain_json(self, column: pa.Array, work: _Work) -> None:
        """Values without a schema that are JSON texts."""
        framing, result = work.framing, work.result
        is_plain = (framing.kind == PLAIN) | (framing.kind == TOO_SHORT)
        plain = np.flatnonzero(is_plain & column.is_valid().to_numpy(zero_copy_only=False))
        numbers, texts = documents.texts(framing.data, framing.start[plain], framing.stop[plain])
        result.failed(plain, NOT_JSON)
        result.done(plain[numbers], texts, None)

    # Protobuf -----------------------------------------------------------------------------------------------------------

    def _messages(self, use: SchemaUse, rows: Numbers, work: _Work) -> None:
        """Protobuf. A value names its message, and the message's name tells the subject."""
        schema: MessageSchema = self._maker(use)
        for path, (group, starts) in self._by_message(schema, rows, work).items():
            name = schema.messages[path]
            work.result.messages.update(zip(group.tolist(), repeat((name, path)), strict=False))
            forms: list[Form] = []
            if isinstance(work.topic_reader, MessageReader) and work.topic_reader.name == name:
                forms.append(work.topic_reader)
            reader = work.reader if isinstance(work.reader, MessageReader) else None
            if reader is None or reader.name == name:
                forms.append(reader or (schema, path))
            else:
                work.result.failed(group, OTHER_SCHEMA)
            named = self._named(use, work, name)
            for form, piece_rows, values in self._bodies(forms, group, starts, work.framing):
                if form is work.topic_reader:
                    if values is not None:
                        work.add_columns(piece_rows, values)
                elif values is None:
                    work.result.failed(piece_rows, CORRUPT)
                else:
                    work.result.done(piece_rows, values, named)

    def _by_message(
        self, schema: MessageSchema, rows: Numbers, work: _Work
    ) -> dict[tuple[int, ...], tuple[Numbers, Numbers]]:
        """Rows by the message that they hold, with where its bytes begin. Nearly all name the first one, with a byte 0."""
        framing, result = work.framing, work.result
        starts = framing.start[rows]
        is_plain = ~np.isin(rows, list(framing.rest)) if framing.rest else np.ones(rows.size, np.bool_)
        has_byte = is_plain & (starts < framing.stop[rows])
        is_first = np.zeros(rows.size, np.bool_)
        is_first[has_byte] = framing.data[starts[has_byte]] == 0
        others: dict[tuple[int, ...], tuple[list[int], list[int]]] = {}
        for row, start in zip(rows[~is_first].tolist(), starts[~is_first].tolist(), strict=True):
            try:
                if row in framing.rest:
                    path, size = protobuf.read_indexes(framing.rest[row])[0], 0
                else:
                    path, size = protobuf.read_indexes(framing.body(row))
                schema.message(path)
            except EOFError:
                result.failed(row, TRUNCATED)
            except protobuf.BadIndex:
                result.failed(row, BAD_INDEX)
            else:
                group, places = others.setdefault(path, ([], []))
                group.append(row)
                places.append(start + size)
        groups = {path: (np.array(group), np.array(places)) for path, (group, places) in others.items()}
        if is_first.any():
            if (0,) not in schema.messages:
                result.failed(rows[is_first], BAD_INDEX)
                return groups
            more = groups.get((0,), (np.zeros(0, np.int64), np.zeros(0, np.int64)))
            groups[0,] = (
                np.concatenate((rows[is_first], more[0])),
                np.concatenate((starts[is_first] + 1, more[1])),
            )
        return groups

    def _bodies(
        self, forms: Sequence[Form], rows: Numbers, starts: Numbers, framing: Framing
    ) -> Iterator[tuple[Form, Numbers, pa.Array | None]]:
        """Bodies of one message, as columns of readers or as JSON: all at once, then those one by one that only the library can read. Rows
        that cannot be read come with None. Forms of the same schema share one scan.
        """
        stops = framing.stop[rows]
        schemas = [(form.schema, form.path) if isinstance(form, MessageReader) else form for form in forms]
        layouts = [schema.layout(path) for schema, path in schemas]
        step = min((rows.size if layout is None else rows_at_once(layout) for layout in layouts), default=rows.size)
        for first in range(0, rows.size, step):
            part = slice(first, first + step)
            levels: dict[tuple[bytes, tuple[int, ...]], Level] = {}
            for form, (schema, path), layout in zip(forms, schemas, layouts, strict=True):
                left = np.ones(rows[part].size, np.bool_)
                if layout is not None:
                    reader = ColumnMessages if isinstance(form, MessageReader) else JsonMessages
                    messages = reader(framing.data, starts[part], stops[part])
                    key = schema.files, path
                    if key not in levels:
                        levels[key] = scan(layout, messages.data, messages.starts, messages.stops)
                    values, left = messages.make(layout, levels[key]), messages.is_unusual
                    yield form, rows[part][~left], values.filter(pa.array(~left))
                for piece, values in self._bodies_alone(form, first + np.flatnonzero(left), starts, stops, framing):
                    yield form, rows[piece], values

    def _bodies_alone(
        self, form: Form, places: Numbers, starts: Numbers, stops: Numbers, framing: Framing
    ) -> Iterator[tuple[list[int], pa.Array | None]]:
        """Bodies one by one, by the library."""
        read = form.value if isinstance(form, MessageReader) else partial(protobuf.to_json, form[0].message(form[1]))
        good, bad, values = [], [], []
        for place in places.tolist():
            try:
                values.append(read(framing.data[starts[place] : stops[place]].tobytes()))
                good.append(place)
            except ValueError:
                bad.append(place)
        if good:
            yield good, pa.array(values, form.arrow if isinstance(form, MessageReader) else pa.string())
        if bad:
            yield bad, None

    # What is made of schemas --------------------------------------------------------------------------------------------

    def _maker(self, use: SchemaUse) -> Any:
        """What decodes values of a schema. SchemaError or LookupError if it cannot be used."""
        return self._kept(use, (), lambda: self._make(use))

    def _kept(self, use: SchemaUse, more: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """What is made of a schema; once, also if that fails."""
        schema = use.schema
        key = schema.type, schema.context, schema.text, schema.references, *more
        if key not in self._cache:
            try:
                self._cache[key] = make()
            except (SchemaError, LookupError) as error:
                self._cache[key] = error
        result = self._cache[key]
        if isinstance(result, Exception):
            raise result
        return result

    def _make(self, use: SchemaUse) -> Any:
        if use.schema.type == "PROTOBUF":
            return protobuf.compile_schema(use.schema.text, self._imports(use))
        texts = self._texts(use)
        try:
            return avro.Program(avro.parse(use.schema.text, texts))
        except avro.NoColumns:
            return SingleReader(use.schema.text, texts)

    def _imports(self, use: SchemaUse) -> list[tuple[str, str]]:
        """The names and texts of the schemas that a schema uses."""
        return [(reference.name, schema.text) for reference, schema in self.catalog.referenced(use.schema)]

    def _texts(self, use: SchemaUse) -> list[str]:
        return [text for _, text in self._imports(use)]

    def editor(self, use: SchemaUse, path: tuple[int, ...]) -> AvroEditor | MessageEditor:
        """What changes fields of values of a schema; `path` leads to the message of Protobuf. SchemaError or LookupError if it cannot be
        used.
        """

        def make() -> AvroEditor | MessageEditor:
            if use.schema.type == "PROTOBUF":
                return MessageEditor(self._maker(use), path)
            return AvroEditor(use.schema.text, self._texts(use))

        editor: AvroEditor | MessageEditor = self._kept(use, ("editor", path), make)
        return editor

    def splicer(self, use: SchemaUse, rules: Sequence[MaskRule]) -> Splicer | None:
        """What changes fields of many values of an Avro schema at once; None if that is not possible. SchemaError or LookupError if the
        schema cannot be used.
        """
        splicer: Splicer | None = self._kept(
            use, ("splicer", *rules), lambda: Splicer.of(use.schema.text, self._texts(use), rules)
        )
        return splicer

    def document_check(self, use: SchemaUse) -> DocumentCheck:
        """What says whether JSON texts fit their schema. SchemaError or LookupError if it cannot be used."""
        check: DocumentCheck = self._kept(use, ("check",), lambda: DocumentCheck(use.schema.text, self._imports(use)))
        return check
