"""Keys and values decoded: which schema each record names, and its value as JSON text.

A value that cannot be decoded stays as it is, and is counted by reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rawlog.values import avro, avro_values, kernels, nested, protobuf
from rawlog.values.avro import SchemaError
from rawlog.values.avro_columns import Reader
from rawlog.values.avro_edit import AvroEditor, DocumentCheck, Splicer
from rawlog.values.avro_values import OneByOne
from rawlog.values.protobuf_columns import ColumnMessages, MessageReader
from rawlog.values.protobuf_edit import MessageEditor
from rawlog.values.protobuf_values import JsonMessages, rows_at_once
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
from rawlog.values.registry import Catalog, Found

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from rawlog.values.mask import Rule
    from rawlog.values.protobuf import Compiled
    from rawlog.values.protobuf_values import Layout


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
class Framed:
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


def frame(column: pa.Array, headers: pa.Array | None, side: str) -> Framed:
    """How every value of a binary column names its schema. `side` is key or value; `headers` is the records' column."""
    import pyarrow as pa

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
    return Framed(data, kind, ids, start, stop, rest, guid)


def _by_header(
    headers: pa.Array, name: bytes, kind: NDArray[np.int8], ids: NDArray[np.int64], guid: dict[int, bytes]
) -> dict[int, bytes]:
    """Fill in what headers name; of several with the name the last counts. The bytes after each name, by row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rest: dict[int, bytes] = {}
    items = headers.flatten()
    if not len(items):
        return rest
    keys = items.field("key")
    own = pc.equal(
        keys, pa.scalar(name.decode(), keys.type) if pa.types.is_string(keys.type) else pa.scalar(name, keys.type)
    )
    chosen = np.flatnonzero(pc.fill_null(own, False).to_numpy(zero_copy_only=False))
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
#: So many rows are decoded one by one where one of them has a value that no column can have.
MOST_ONE_BY_ONE = 64
SCHEMA = pa.struct([("id", pa.int32()), ("subject", pa.string()), ("version", pa.int32())])

_REASON = {name: number for number, name in enumerate(REASONS)}
_STATUS = {kernels.TRUNCATED: TRUNCATED, kernels.CORRUPT: CORRUPT, kernels.LIMIT: CORRUPT}


class Decoded:
    """A side of some records: which were decoded, with which schema, and why the others were not.

    Values are collected in pieces, some rows each, as JSON texts or as columns.
    """

    def __init__(self, count: int, framed: Framed | None = None) -> None:
        self.count, self.framed = count, framed
        self.is_decoded = np.zeros(count, np.bool_)
        #: For each row a number of `used` or of `REASONS`; -1: none.
        self.schema = np.full(count, -1, np.int64)
        self.why = np.full(count, -1, np.int64)
        self.used: list[Found] = []
        self._numbers: dict[Found, int] = {}
        self.pieces: list[tuple[NDArray[np.int64], pa.Array]] = []
        #: Of Protobuf: the full names of messages and their index paths, by row.
        self.messages: dict[int, tuple[str, tuple[int, ...]]] = {}
        self.trailing: dict[int, int] = {}

    def failed(self, rows: NDArray[np.int64] | int, reason: str) -> None:
        """Note why rows were not decoded."""
        self.why[rows] = _REASON[reason]

    def done(self, rows: NDArray[np.int64], values: pa.Array, found: Found | None) -> None:
        """Take values of rows that were decoded with one schema, or without any."""
        if not rows.size:
            return
        self.is_decoded[rows], self.why[rows] = True, -1
        if found is not None:
            self.schema[rows] = self._numbers.setdefault(found, len(self._numbers))
            self.used = list(self._numbers)
        self.pieces.append((rows, values))

    def values(self, type: pa.DataType) -> pa.Array:
        """The decoded values in order, null where there is none."""
        if not self.pieces:
            return pa.nulls(self.count, type)
        place = np.full(self.count, -1, np.int64)
        begin = 0
        for rows, array in self.pieces:
            place[rows] = np.arange(begin, begin + len(array))
            begin += len(array)
        whole = pa.concat_arrays([array for _, array in self.pieces])
        if len(whole) == self.count and len(self.pieces) == 1:
            return whole
        return whole.take(pa.array(place, mask=place < 0))

    def schemas(self) -> pa.Array:
        """What was used for each row: id, subject and version."""
        rows = [{"id": one.schema.id, "subject": one.subject, "version": one.version} for one in self.used]
        return pa.array(rows, SCHEMA).take(pa.array(self.schema, mask=self.schema < 0))

    def errors(self) -> pa.Array:
        """Why rows were not decoded; null for those that were, and for those without a schema."""
        return pa.array(list(REASONS)).take(pa.array(self.why, mask=self.why < 0))

    def found(self, row: int) -> Found | None:
        """The schema that was used for a row."""
        return self.used[self.schema[row]] if self.schema[row] >= 0 else None

    def body_size(self, row: int) -> int:
        """The size of a row's body: all after what names its schema, with Protobuf's message indexes if they are there."""
        assert self.framed is not None
        return int(self.framed.stop[row] - self.framed.start[row])

    def has_header(self, row: int) -> bool:
        """Whether a header of the record names the schema."""
        assert self.framed is not None
        return row in self.framed.rest

    def reason(self, row: int) -> str | None:
        """Why a row was not decoded."""
        return list(REASONS)[self.why[row]] if self.why[row] >= 0 else None


class Decoder:
    """Decodes sides of records with the schemas of a catalog. What it makes of a schema is kept."""

    def __init__(self, catalog: Catalog, wishes: Mapping[str, str]) -> None:
        self.catalog, self.wishes = catalog, dict(wishes)
        self._made: dict[tuple[Any, ...], Any] = {}

    def __getstate__(self) -> tuple[Catalog, dict[str, str]]:
        return self.catalog, self.wishes

    def __setstate__(self, state: tuple[Catalog, dict[str, str]]) -> None:
        self.catalog, self.wishes = state
        self._made = {}

    def decode(
        self,
        column: pa.Array,
        headers: pa.Array | None,
        topics: pa.Array,
        side: str,
        reader: Reader | MessageReader | None = None,
        *,
        with_text: bool = True,
    ) -> Decoded:
        """The values of a binary column of records: as JSON texts, or as columns of a `reader` schema. A way other than auto takes only
        values of that kind. Without text it is only known which were decoded; those of Avro are null.
        """
        how = self.wishes.get(side, "raw")
        if how in ("raw", "string") or not len(column):
            return Decoded(len(column))
        framed = frame(column, headers, side)
        result = Decoded(len(column), framed)
        work = _Work(framed, side, how, reader, result, with_text)
        encoded = topics.dictionary_encode()
        names = [*encoded.dictionary.to_pylist(), None]
        codes = encoded.indices.fill_null(len(names) - 1).to_numpy(zero_copy_only=False)
        if how == "auto":  # records that Kafka writes for itself name no schemas
            own = [number for number, one in enumerate(names) if (one or "").startswith("__")]
            framed.kind[np.isin(codes, own)] = PLAIN
            framed.guid = {row: guid for row, guid in framed.guid.items() if framed.kind[row] == BY_GUID}
        if how != "json":
            result.failed(np.flatnonzero(framed.kind == TOO_SHORT), NOT_FRAMED)
        result.failed(np.flatnonzero(framed.kind == WRONG_HEADER), BAD_HEADER)
        self._by_id(work, codes, names)
        self._by_guid(work, codes, names)
        if how == "json":
            self._plain_json(column, work)
        return result

    def _by_id(self, work: _Work, codes: NDArray[Any], topics: list[str | None]) -> None:
        rows = np.flatnonzero(work.framed.kind == BY_ID)
        if not rows.size:
            return
        both = codes[rows].astype(np.int64) << 32 | work.framed.id[rows]
        order = np.argsort(both, kind="stable")  # data that is not of a registry may have another id in each row
        ids, starts = np.unique(both[order], return_index=True)
        for one, own in zip(ids.tolist(), np.split(rows[order], starts[1:]), strict=True):
            number, topic = one & 0xFFFF_FFFF, topics[one >> 32]
            self._group(own, self._find(number, topic, work.side), topic, work)

    def _find(self, id: int, topic: str | None, side: str) -> list[Found]:
        key = "find", id, topic, side
        if key in self._made:
            known: list[Found] = self._made[key]
            return known
        found = self.catalog.find(id, topic, side)
        if found:
            self._made[key] = found
        return found

    def _by_guid(self, work: _Work, codes: NDArray[Any], topics: list[str | None]) -> None:
        groups: dict[tuple[bytes, int], list[int]] = {}
        for row, guid in work.framed.guid.items():
            groups.setdefault((guid, int(codes[row])), []).append(row)
        for (guid, code), rows in groups.items():
            found = self.catalog.find_guid(guid, topics[code], work.side)
            self._group(np.array(rows, np.int64), found, topics[code], work)

    def _named(self, found: Found, topic: str | None, side: str, name: str) -> Found:
        """The same schema with the subject that was used, now that the name of the record or message is known."""
        key = "named", found, topic, side, name
        if key not in self._made:
            version = self.catalog.used(found.schema, topic, side, name)
            self._made[key] = (
                found
                if version is None
                else replace(found, subject=version.name, version=version.version, state=version.state)
            )
        made: Found = self._made[key]
        return made

    def _record_name(self, found: Found) -> str:
        if found.schema.type != "AVRO":
            return ""
        made = self._maker(found)
        return made.type.name or str(made.type.kind)

    def _group(self, rows: NDArray[np.int64], found: list[Found], topic: str | None, work: _Work) -> None:
        """Decode rows that name the same schema. Where an id was given twice, each schema is tried in turn, and one that leaves bytes over
        only if no other fits.
        """
        if not found:
            work.result.failed(rows, UNKNOWN_ID)
            return
        attempts = [(one, work) for one in found]
        if len(found) > 1:
            attempts = [(one, replace(work, is_whole=True)) for one in found] + attempts
        for one, own in attempts:
            if work.how != "auto" and one.schema.type != work.how.upper():
                work.result.failed(rows, OTHER_KIND)
                continue
            try:
                self._with(one, rows, topic, own)
            except (SchemaError, LookupError):
                work.result.failed(rows, BAD_SCHEMA)
            rows = rows[~work.result.is_decoded[rows]]
            if not rows.size:
                return

    def _with(self, found: Found, rows: NDArray[np.int64], topic: str | None, work: _Work) -> None:
        if found.schema.type != "AVRO":
            if isinstance(work.reader, Reader) or (work.reader is not None and found.schema.type != "PROTOBUF"):
                work.result.failed(rows, OTHER_SCHEMA)
            elif found.schema.type == "PROTOBUF":
                self._messages(found, rows, topic, work)
            else:
                self._documents(found, rows, topic, work)
            return
        if isinstance(work.reader, MessageReader):
            work.result.failed(rows, OTHER_SCHEMA)
            return
        named = self._named(found, topic, work.side, self._record_name(found))
        made = self._maker(found)
        if isinstance(made, OneByOne):
            if work.reader is not None:
                work.result.failed(rows, OTHER_SCHEMA)
                return
            self._recursive(made, named, rows, work)
            return
        step = avro.rows_at_once(made)
        for first in range(0, rows.size, step):
            self._columns(made, named, rows[first : first + step], work)

    def _columns(self, made: avro.Program, named: Found, rows: NDArray[np.int64], work: _Work) -> None:
        """Rows that were written with one Avro schema."""
        framed, result = work.framed, work.result
        entries = avro.run(made, framed.data, framed.start[rows], framed.stop[rows])
        if work.is_whole:
            entries.status[(entries.status == kernels.OK) & (entries.ends != framed.stop[rows])] = kernels.CORRUPT
        is_good = entries.status == kernels.OK
        for status, reason in _STATUS.items():
            result.failed(rows[entries.status == status], reason)
        if not work.with_text:
            values = pa.nulls(rows.size, pa.string())
        elif work.reader is None:
            try:
                values = avro_values.to_json(made.type, entries, rows.size, None if is_good.all() else is_good)
            except avro_values.Unfit:
                self._some_unfit(made, named, rows, work)
                return
        else:
            assert isinstance(work.reader, Reader)
            try:
                values, is_good = work.reader.columns(made.type, entries, is_good)
            except SchemaError:
                result.failed(rows[is_good], OTHER_SCHEMA)
                return
            result.failed(rows[~is_good & (entries.status == kernels.OK)], OTHER_SCHEMA)
        result.done(rows[is_good], values if is_good.all() else values.filter(pa.array(is_good)), named)
        after = framed.stop[rows] - entries.ends
        for place in np.flatnonzero(is_good & (after != 0)).tolist():
            result.trailing[int(rows[place])] = int(after[place])

    def _some_unfit(self, made: avro.Program, named: Found, rows: NDArray[np.int64], work: _Work) -> None:
        """Rows of which some have a value that no column can have: by halves, and one by one where they are few."""
        if rows.size > MOST_ONE_BY_ONE:
            for half in np.array_split(rows, 2):
                self._columns(made, named, half, work)
            return
        texts = [schema.text for _, schema in self.catalog.referenced(named.schema)]
        one_by_one: OneByOne = self._kept(named, ("one by one",), lambda: OneByOne(named.schema.text, texts))
        self._recursive(one_by_one, named, rows, work)

    def _recursive(self, made: OneByOne, found: Found, rows: NDArray[np.int64], work: _Work) -> None:
        good, texts = [], []
        for row in rows.tolist():
            status, text, left = made.read(work.framed.body(row))
            if left and work.is_whole:
                status = kernels.CORRUPT
            if status != kernels.OK:
                work.result.failed(row, _STATUS[status])
                continue
            good.append(row)
            texts.append(text)
            if left:
                work.result.trailing[row] = left
        work.result.done(np.array(good, np.int64), pa.array(texts, pa.string()), found)

    def _documents(self, found: Found, rows: NDArray[np.int64], topic: str | None, work: _Work) -> None:
        """JSON with a schema."""
        framed = work.framed
        numbers, texts = nested.texts(framed.data, framed.start[rows], framed.stop[rows])
        work.result.failed(rows, CORRUPT)
        work.result.done(rows[numbers], texts, self._named(found, topic, work.side, ""))

    def _messages(self, found: Found, rows: NDArray[np.int64], topic: str | None, work: _Work) -> None:
        """Protobuf. A value names its message, and the message's name tells the subject."""
        made: Compiled = self._maker(found)
        for path, (own, starts) in self._by_message(made, rows, work).items():
            name = made.messages[path]
            work.result.messages.update(zip(own.tolist(), repeat((name, path)), strict=False))
            chosen, at = made, path
            if isinstance(work.reader, MessageReader):
                if work.reader.name != name:
                    work.result.failed(own, OTHER_SCHEMA)
                    continue
                chosen, at = work.reader.compiled, work.reader.path
            named, layout = self._named(found, topic, work.side, name), chosen.layout(at)
            step = own.size if layout is None else rows_at_once(layout)
            for first in range(0, own.size, step):
                part = slice(first, first + step)
                self._bodies(chosen.message(at), layout, own[part], starts[part], named, work)

    def _by_message(
        self, made: Compiled, rows: NDArray[np.int64], work: _Work
    ) -> dict[tuple[int, ...], tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Rows by the message that they hold, with where its bytes begin. Nearly all name the first one, with a byte 0."""
        framed, result = work.framed, work.result
        starts = framed.start[rows]
        is_plain = ~np.isin(rows, list(framed.rest)) if framed.rest else np.ones(rows.size, np.bool_)
        has_byte = is_plain & (starts < framed.stop[rows])
        is_first = np.zeros(rows.size, np.bool_)
        is_first[has_byte] = framed.data[starts[has_byte]] == 0
        found: dict[tuple[int, ...], tuple[list[int], list[int]]] = {}
        for row, start in zip(rows[~is_first].tolist(), starts[~is_first].tolist(), strict=True):
            try:
                if row in framed.rest:
                    path, size = protobuf.read_indexes(framed.rest[row])[0], 0
                else:
                    path, size = protobuf.read_indexes(framed.body(row))
                made.message(path)
            except EOFError:
                result.failed(row, TRUNCATED)
            except protobuf.BadIndex:
                result.failed(row, BAD_INDEX)
            else:
                own, places = found.setdefault(path, ([], []))
                own.append(row)
                places.append(start + size)
        groups = {path: (np.array(own), np.array(places)) for path, (own, places) in found.items()}
        if is_first.any():
            if (0,) not in made.messages:
                result.failed(rows[is_first], BAD_INDEX)
                return groups
            others = groups.get((0,), (np.zeros(0, np.int64), np.zeros(0, np.int64)))
            firsts = rows[is_first], starts[is_first] + 1
            groups[0,] = np.concatenate((firsts[0], others[0])), np.concatenate((firsts[1], others[1]))
        return groups

    def _bodies(
        self,
        message: Any,
        layout: Layout | None,
        rows: NDArray[np.int64],
        starts: NDArray[np.int64],
        named: Found,
        work: _Work,
    ) -> None:
        """Bodies of one message: all at once, then those one by one that only the library can read."""
        framed, result = work.framed, work.result
        left, stops = np.ones(rows.size, np.bool_), framed.stop[rows]
        if layout is not None:
            form = JsonMessages if work.reader is None else ColumnMessages
            many = form(framed.data, starts, stops)
            values, left = many.make(layout), many.is_unusual
            result.done(rows[~left], values.filter(pa.array(~left)), named)
        read = work.reader.value if isinstance(work.reader, MessageReader) else partial(protobuf.to_json, message)
        good, found = [], []
        for row, start, stop in zip(rows[left].tolist(), starts[left].tolist(), stops[left].tolist(), strict=True):
            try:
                found.append(read(framed.data[start:stop].tobytes()))
                good.append(row)
            except ValueError:
                result.failed(row, CORRUPT)
        if good:
            type = pa.string() if work.reader is None else work.reader.arrow
            result.done(np.array(good, np.int64), pa.array(found, type), named)

    def _maker(self, found: Found) -> Any:
        """What decodes values of a schema. SchemaError or LookupError if it cannot be used."""
        return self._kept(found, (), lambda: self._make(found))

    def _kept(self, found: Found, more: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """What was made of a schema; made once, also if that fails."""
        schema = found.schema
        key = schema.type, schema.context, schema.text, schema.references, *more
        if key not in self._made:
            try:
                self._made[key] = make()
            except (SchemaError, LookupError) as error:
                self._made[key] = error
        made = self._made[key]
        if isinstance(made, Exception):
            raise made
        return made

    def editor(self, found: Found, path: tuple[int, ...]) -> AvroEditor | MessageEditor:
        """What changes fields of values of a schema; `path` leads to the message of Protobuf. SchemaError or LookupError if it cannot be
        used.
        """

        def make() -> AvroEditor | MessageEditor:
            if found.schema.type == "PROTOBUF":
                return MessageEditor(self._maker(found), path)
            return AvroEditor(found.schema.text, [schema.text for _, schema in self.catalog.referenced(found.schema)])

        editor: AvroEditor | MessageEditor = self._kept(found, ("editor", path), make)
        return editor

    def splicer(self, found: Found, rules: Sequence[Rule]) -> Splicer | None:
        """What changes fields of many values of an Avro schema at once; None if that is not possible. SchemaError or LookupError if the
        schema cannot be used.
        """
        used = self.catalog.referenced(found.schema)
        texts = [schema.text for _, schema in used]
        made: Splicer | None = self._kept(
            found, ("splicer", *rules), lambda: Splicer.of(found.schema.text, texts, rules)
        )
        return made

    def document_check(self, found: Found) -> DocumentCheck:
        """What says whether JSON texts fit their schema. SchemaError or LookupError if it cannot be used."""

        def make() -> DocumentCheck:
            used = self.catalog.referenced(found.schema)
            return DocumentCheck(found.schema.text, [(one.name, schema.text) for one, schema in used])

        check: DocumentCheck = self._kept(found, ("check",), make)
        return check

    def _make(self, found: Found) -> Any:
        used = self.catalog.referenced(found.schema)
        if found.schema.type == "PROTOBUF":
            return protobuf.compile_schema(found.schema.text, [(one.name, schema.text) for one, schema in used])
        texts = [schema.text for _, schema in used]
        try:
            return avro.Program(avro.parse(found.schema.text, texts))
        except avro.NoColumns:
            return OneByOne(found.schema.text, texts)

    def _plain_json(self, column: pa.Array, work: _Work) -> None:
        """Values without a schema that are JSON texts."""
        framed, result = work.framed, work.result
        is_plain = (framed.kind == PLAIN) | (framed.kind == TOO_SHORT)
        plain = np.flatnonzero(is_plain & column.is_valid().to_numpy(zero_copy_only=False))
        numbers, texts = nested.texts(framed.data, framed.start[plain], framed.stop[plain])
        result.failed(plain, NOT_JSON)
        result.done(plain[numbers], texts, None)


@dataclass(slots=True)
class _Work:
    """What is decoded: the framed values of one side, how, and where the result goes."""

    framed: Framed
    side: str
    how: str
    reader: Reader | MessageReader | None
    result: Decoded
    with_text: bool
    #: Whether a value must end where its bytes end.
    is_whole: bool = False
