"""Masking: rows that may be shared, because chosen fields are dropped, hashed, fixed or replaced by others of the same form.

Tests of a selection see the rows as they were. `SchemaMask` masks fields of values of a schema registry: they are written again with the
same schema and the same framing.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from json.encoder import encode_basestring
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rawlog.kernels import grammar
from rawlog.kernels.columns import Splice, Splices
from rawlog.kernels.columns import spans as column_of
from rawlog.kernels.gather import OTHER, TEXT
from rawlog.model.errors import AccessError, OptionError, unknown
from rawlog.model.table import HEADERS, Step, parse_steps
from rawlog.model.text import counted, parse_span
from rawlog.reading.fields import can_mark, marked_fields
from rawlog.values import protobuf
from rawlog.values.avro import SchemaError
from rawlog.values.decode import ValueDecoder
from rawlog.values.documents import change_fields, encoded, parsed
from rawlog.values.masker import Edit, Masker, MaskRule, Misfit, UnknownType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rawlog.model.table import Table
    from rawlog.reading.select import Tally
    from rawlog.values.decode import DecodedValues
    from rawlog.values.registry import Catalog, SchemaUse
    from rawlog.values.transform import Wish

SECRET = "RAWLOG_MASK_SECRET"  # noqa: S105 - the name of a variable
LEAST_SECRET = 8
HOWS = ("drop", "hash", "fixed:TEXT", "digits", "shift:TIME")
#: What is done with values that are not JSON, if fields are masked.
OTHERS = ("refuse", "keep", "drop", "hash")
#: What a schema registry puts before a JSON text: a zero and the number of the schema.
_FRAME = 5
#: A rule, and what it makes of a value in a JSON text.
Change = tuple[MaskRule, Callable[[Any], Any]]
Columns = Mapping[str, pa.Array]


class Mask:
    """The transform of a selection that masks fields of keys, values and headers, and moves times."""

    is_tested, is_shown = False, True
    #: What values are that have no fields that can be masked.
    unread = "not JSON"

    def __init__(self, rules: Sequence[MaskRule], masker: Masker, other: str = "refuse") -> None:
        """`other` is what is done with keys and values that are not JSON if fields of them are masked (OTHERS)."""
        self.rules, self.masker, self.other = tuple(rules), masker, other
        self.counts: Tally = Counter()

    def __repr__(self) -> str:
        rules = ",".join(rule.shown for rule in self.rules)
        sizes = ", sizes kept" if self.masker.keep_sizes else ""
        return f"masked {rules}{sizes}" + (f", secret {self.masker.fingerprint}" if self.needs_secret else "")

    @property
    def needs_secret(self) -> bool:
        return self.other == "hash" or any(rule.how in ("hash", "digits") for rule in self.rules)

    @property
    def columns(self) -> set[str]:
        return {rule.column for rule in self.rules}

    def table(self, table: Table) -> Table:
        """The same columns. OptionError for a table that lacks one that is to be masked."""
        for rule in self.rules:
            kind = table.column(rule.column).type if rule.column in table.names else None
            if kind != {"headers": HEADERS, "timestamp": "timestamp"}.get(rule.column, "binary"):
                raise OptionError(f"--mask {rule.text}: rows of {table.name} have no {rule.column} that can be masked")
        return table

    def needs(self, table: Table, names: Sequence[str]) -> Sequence[str]:
        """The same columns, and the key next to headers that may repeat it."""
        more = ["key"] if "headers" in names and "key" in self.columns and "key" not in names else []
        return [*names, *more]

    def begin(self) -> Self:
        return type(self)(self.rules, self.masker, self.other)

    def apply(self, batch: pa.RecordBatch, table: Table) -> pa.RecordBatch:
        """The masked rows. A header whose value is the key is masked as the key is."""
        self.counts["", "rows"] += batch.num_rows
        if not batch.num_rows:
            return batch
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        masked = dict(columns)
        for name in self.columns & columns.keys():
            rules = [rule for rule in self.rules if rule.column == name]
            if name == "timestamp":
                masked[name] = self._shifted(columns[name], rules[0])
            elif name != "headers":
                whole = [rule for rule in rules if not rule.steps]
                change = self._whole if whole else self._fields
                masked[name] = change(name, columns, whole or rules)
        if "headers" in columns and self.columns & {"headers", "key"}:
            masked["headers"] = self._headers(columns["headers"], columns.get("key"), masked.get("key"))
        return pa.RecordBatch.from_arrays([masked[name] for name in columns], schema=batch.schema)

    def _shifted(self, column: pa.Array, rule: MaskRule) -> pa.Array:
        self.counts[rule.text, "masked"] += len(column)
        return pc.add_checked(column.cast(pa.int64()), rule.shift).cast(column.type)

    def _whole(self, name: str, columns: Columns, rules: Sequence[MaskRule]) -> pa.Array:
        """Whole keys or values."""
        [rule], column = rules, columns[name]
        self.counts[rule.text, "masked"] += len(column)
        change, values = rule.all_mask(self.masker), column.dictionary_encode()
        masked = pa.array(change(values.dictionary.to_pylist()), column.type)
        return masked.take(values.indices)

    def _fields(self, name: str, columns: Columns, rules: Sequence[MaskRule]) -> pa.Array:
        """Fields of values that are JSON texts. Others are counted."""
        column, changes = columns[name], self.changes(rules)
        splices = Splices(column)
        left = splices.valid.copy()
        left[left] = ~self.spliced(splices, np.flatnonzero(left), changes)
        rows = np.flatnonzero(left)
        values = column.take(pa.array(rows)).to_pylist()
        splices.replace(rows, [self.changed(value, changes) for value in values])
        return splices.result()

    def spliced(self, splices: Splices, rows: NDArray[np.int64], changes: Sequence[Change]) -> NDArray[np.bool_]:
        """Change fields of JSON texts by columns; which texts were changed so. All other bytes stay."""
        paths = [rule.steps for rule, _ in changes]
        drops = [rule.how == "drop" for rule, _ in changes]
        if self.masker.keep_sizes or not can_mark(paths):
            return np.zeros(rows.size, np.bool_)
        starts, stops = splices.places[:-1][rows], splices.places[1:][rows]
        is_framed = np.zeros(rows.size, np.bool_)
        is_framed[stops > starts] = splices.data[starts[stops > starts]] == 0
        spans, done, fields = marked_fields(
            splices.data, np.minimum(starts + _FRAME * is_framed, stops), stops, paths, drops
        )
        for number, (rule, change) in enumerate(changes):
            self.count_masked(rule, done, done & ((fields >> number) & 1 == 1))
            ruled = spans[spans[:, 3] == number]
            for kind in np.unique(ruled[:, 4]).tolist():
                self._splice(splices, rows, ruled[ruled[:, 4] == kind], kind, rule, change)
        return done

    def count_masked(self, rule: MaskRule, done: NDArray[np.bool_], has_field: NDArray[np.bool_]) -> None:
        """Count the values, of those that are done, that have the field of a rule, and the others."""
        masked = int(np.count_nonzero(has_field))
        self.counts[rule.text, "masked"] += masked
        self.counts[rule.text, "missing"] += int(np.count_nonzero(done)) - masked

    def _splice(
        self,
        splices: Splices,
        rows: NDArray[np.int64],
        spans: NDArray[np.int64],
        kind: int,
        rule: MaskRule,
        change: Callable[[Any], Any],
    ) -> None:
        """Put the masks of values of one kind into their place; each distinct value is masked once."""
        starts, stops = spans[:, 1], spans[:, 2]
        if kind in (grammar.MEMBER, grammar.ITEM):
            pieces, codes = [b"null" if kind == grammar.ITEM else b""], np.zeros(starts.size, np.int64)
        else:
            quote = int(kind == TEXT)
            values = column_of(splices.data, starts + quote, stops - starts - 2 * quote).dictionary_encode()
            codes = values.indices.to_numpy(zero_copy_only=False).astype(np.int64)
            distinct = values.dictionary.to_pylist()
            if quote:
                texts = ((mask or b"").decode("utf-8", "replace") for mask in rule.all_mask(self.masker)(distinct))
                pieces = [encode_basestring(text).encode() for text in texts]
            elif kind == OTHER and rule.how == "digits":
                numbers = iter(self.masker.numbers_all([value for value in distinct if value[:1] not in b"tf"]))
                pieces = [value if value[:1] in b"tf" else next(numbers) for value in distinct]  # true and false stay
            else:
                pieces = [encoded(change(parsed(value)), value) for value in distinct]
        splices.put(Splice(rows[spans[:, 0]], starts, stops, pieces, codes))

    def changes(self, rules: Sequence[MaskRule]) -> list[Change]:
        """Rules with what they do to a value in a JSON text."""
        return [(rule, rule.json_mask(self.masker)) for rule in rules]

    def changed(self, value: bytes, changes: Sequence[Change], start: int | None = None) -> bytes | None:
        """A value with changed fields; its text begins at `start`, by default after the name of a schema, if it begins with one."""
        if start is None:
            start = _FRAME if value[:1] == b"\0" else 0
        try:
            document = parsed(value[start:])
            if document is not None and not isinstance(document, list):
                raise ValueError("a number or a text has no fields")
        except (ValueError, RecursionError):
            return self.not_read(value, [rule for rule, _ in changes])
        is_changed = False
        for rule, change in changes:
            has_field = change_fields(document, rule.steps, change)
            self.counts[rule.text, "masked" if has_field else "missing"] += 1
            is_changed |= has_field
        if not is_changed:
            return value
        text = encoded(document, value)
        if self.masker.keep_sizes:
            text = text.ljust(len(value) - start)
            self.counts["", "larger"] += len(text) > len(value) - start
        return value[:start] + text

    def not_read(self, value: bytes, rules: Sequence[MaskRule]) -> bytes | None:
        """The replacement of a value whose fields are not known. It is counted for each rule."""
        for rule in rules:
            self.counts[rule.text, "not JSON"] += 1
        return None if self.other == "drop" else self.masker.hash(value) if self.other == "hash" else value

    def _headers(self, column: pa.Array, old: pa.Array | None, new: pa.Array | None) -> pa.Array:
        """The headers of rows, masked by their names, or as the key if they repeat it."""
        masks = {".".join(map(str, rule.steps)): rule for rule in self.rules if rule.column == "headers"}
        changes = {name: rule.bytes_mask(self.masker) for name, rule in masks.items()}
        is_key_masked = any(rule.column == "key" for rule in self.rules) and old is not None and new is not None
        keys = old.to_pylist() if is_key_masked and old is not None else [None] * len(column)
        masked = new.to_pylist() if is_key_masked and new is not None else keys
        rows: list[list[dict[str, Any]] | None] = []
        for headers, key, instead in zip(column.to_pylist(), keys, masked, strict=True):
            if headers is None:
                rows.append(None)
                continue
            kept: list[dict[str, Any]] = []
            for header in headers:
                rule, value = masks.get(header["key"]), header["value"]
                if rule is not None:
                    self.counts[rule.text, "masked"] += 1
                    if rule.how == "drop":
                        continue
                    value = None if value is None else changes[header["key"]](value)
                elif key and value == key:
                    if instead is None:
                        continue
                    value = instead
                kept.append({"key": header["key"], "value": value})
            rows.append(kept)
        return pa.array(rows, column.type)

    def judge(self, counts: Tally) -> list[str]:
        """Notes on values without a field. OptionError if a field was in none of the rows, as its name may be wrong; and if values are not
        JSON, as it is unknown whether they have it, unless `other` says what is done with them.
        """
        rows = counts["", "rows"]
        for rule in self.rules if rows else ():
            other = counts[rule.text, "not JSON"]
            what = f"{counted(other, rule.column)} {'is' if other == 1 else 'are'} {self.unread}"
            if not counts[rule.text, "masked"]:
                more = f"; {what}" if other else ""
                raise OptionError(f"--mask {rule.text}: none of {counted(rows, 'row')} has this field{more}")
            if other and self.other == "refuse":
                raise OptionError(
                    f"--mask {rule.text}: {what}, and may have what is to be masked; choose others by --topic or --where, read Avro and "
                    "Protobuf by --decode value=auto, or say what is done with them: --mask-other drop, hash or keep"
                )
        return [*self._notes(counts)]

    def _notes(self, counts: Tally) -> Iterator[str]:
        for rule in self.rules:
            missing, other = counts[rule.text, "missing"], counts[rule.text, "not JSON"]
            if missing:
                yield f"--mask {rule.text}: {counted(missing, 'row')} without this field"
            if other:
                done = {"drop": "dropped", "hash": "hashed as a whole"}.get(self.other, "not masked")
                yield f"--mask {rule.text}: {counted(other, 'row')} {done}: the {rule.column} is {self.unread}"
        if counts["", "larger"]:
            yield f"--mask: {counted(counts['', 'larger'], 'value')} could not keep the size"
        if self.needs_secret:
            yield f"masked with the secret {self.masker.fingerprint} (its fingerprint): other results of this secret can be joined"


class SchemaMask(Mask):
    """A mask that knows schemas. It must be bound to those of a tree. Values without a schema are masked as JSON texts."""

    unread = "neither JSON nor of a schema that is known"

    def __init__(
        self,
        rules: Sequence[MaskRule],
        masker: Masker,
        other: str,
        wishes: Mapping[str, Wish],
        source: str | None = None,
        decoder: ValueDecoder | None = None,
    ) -> None:
        """`wishes` say how sides are decoded, and `source` where schemas come from, as for `Decode`."""
        super().__init__(rules, masker, other)
        self.wishes, self.source, self.decoder = dict(wishes), source, decoder

    @classmethod
    def of(cls, mask: Mask, wishes: Mapping[str, Wish], source: str | None) -> Self:
        """The same mask for values that are decoded as wished."""
        return cls(mask.rules, mask.masker, mask.other, wishes, source)

    def begin(self) -> Self:
        return type(self)(self.rules, self.masker, self.other, self.wishes, self.source, self.decoder)

    def bound(self, catalog: Catalog) -> Self:
        """The same with schemas."""
        decoder = ValueDecoder(catalog, {side: wish.how for side, wish in self.wishes.items()})
        return type(self)(self.rules, self.masker, self.other, self.wishes, self.source, decoder)

    def _has_schemas(self, side: str) -> bool:
        return side in self.wishes and self.wishes[side].how not in ("raw", "string")

    def needs(self, table: Table, names: Sequence[str]) -> Sequence[str]:
        """The same columns, and those that name the schema and the place."""
        names = super().needs(table, names)
        has_schemas = any(
            side in names and side in self.columns and self._has_schemas(side) for side in ("key", "value")
        )
        more = ("headers", "topic", "partition", "offset") if has_schemas else ()
        return [*names, *(name for name in more if name in table.names and name not in names)]

    def _fields(self, name: str, columns: Columns, rules: Sequence[MaskRule]) -> pa.Array:
        """Fields of values, each written again with its own schema. OptionError for a field that cannot have its mask."""
        if not self._has_schemas(name):
            return super()._fields(name, columns, rules)
        if self.decoder is None:
            raise OptionError("--decode: rows are not decoded here")
        column = columns[name]
        topics = columns["topic"] if "topic" in columns else pa.nulls(len(column), pa.string())
        decoded = self.decoder.decode(column, columns.get("headers"), topics, name, with_text=False)
        changes = self.changes(rules)
        edits = [Edit.of(rule, self.masker) for rule in rules]
        splices = Splices(column)
        left = splices.valid.copy()
        for number, schema in enumerate(decoded.used):
            if schema.schema.type == "AVRO":
                rows = np.flatnonzero(decoded.schema == number)
                left[rows] = ~self._spliced(splices, rows, decoded, schema, edits)
        rows = np.flatnonzero(left & (decoded.schema < 0))
        left[rows] = ~self.spliced(splices, rows, changes)
        if self.masker.keep_sizes:
            self.counts["", "larger"] += int(np.count_nonzero(splices.growth()))
        rows = np.flatnonzero(left)
        values: list[bytes | None] = []
        for row, value in zip(rows.tolist(), column.take(pa.array(rows)).to_pylist(), strict=True):
            if decoded.schema_of(row) is None:
                values.append(self.changed(value, changes))
            else:
                values.append(self._edited(row, value, decoded, columns, changes, edits))
        splices.replace(rows, values)
        return splices.result()

    def _spliced(
        self,
        splices: Splices,
        rows: NDArray[np.int64],
        decoded: DecodedValues,
        schema: SchemaUse,
        edits: Sequence[Edit],
    ) -> NDArray[np.bool_]:
        """Change fields of Avro values of one schema by columns; which of them were changed so. The others are to be changed one by one,
        also those of a schema that cannot be used or does not fit a rule: then the place is known.
        """
        assert self.decoder is not None
        assert decoded.framing is not None
        try:
            splicer = self.decoder.splicer(schema, [edit.rule for edit in edits])
            if splicer is None:
                return np.zeros(rows.size, np.bool_)
            starts, stops = decoded.framing.start[rows], decoded.framing.stop[rows]
            pieces, done, has_field = splicer.edit(splices.data, rows, starts, stops, edits)
        except (Misfit, SchemaError, LookupError):
            return np.zeros(rows.size, np.bool_)
        for piece in pieces:
            splices.put(piece)
        for edit, there in zip(edits, has_field, strict=True):
            self.count_masked(edit.rule, done, there)
        return done

    def _edited(
        self,
        row: int,
        value: bytes,
        decoded: DecodedValues,
        columns: Columns,
        changes: Sequence[Change],
        edits: Sequence[Edit],
    ) -> bytes | None:
        """A value that was decoded, with changed fields."""
        schema = decoded.schema_of(row)
        assert schema is not None
        assert self.decoder is not None
        start = len(value) - decoded.body_size(row)
        try:
            if schema.schema.type == "JSON":
                return self._document(value, start, schema, changes)
            if row in decoded.messages and not decoded.has_header(row):
                start += protobuf.read_indexes(value[start:])[1]
            path = decoded.messages[row][1] if row in decoded.messages else ()
            body, has_field = self.decoder.editor(schema, path).edit(value[start:], edits)
        except Misfit as error:
            if isinstance(error, UnknownType) and self.other != "refuse":
                return self.not_read(value, [edit.rule for edit in edits])
            raise OptionError(self._misfit(error, edits, schema, row, columns)) from None
        except (SchemaError, LookupError) as error:
            name = f"{schema.subject} version {schema.version}"
            raise OptionError(f"--mask: {name}: the schema cannot be used: {error}") from None
        except ValueError:  # of a text that is not UTF-8, for example
            return self.not_read(value, [edit.rule for edit in edits])
        for edit, there in zip(edits, has_field, strict=True):
            self.counts[edit.rule.text, "masked" if there else "missing"] += 1
        self.counts["", "larger"] += self.masker.keep_sizes and len(body) != len(value) - start
        return value[:start] + body

    def _document(self, value: bytes, start: int, schema: SchemaUse, changes: Sequence[Change]) -> bytes | None:
        """A JSON text with changed fields. Misfit if it does not fit its schema any more."""
        assert self.decoder is not None
        changed = self.changed(value, changes, start)
        if changed is not None and changed != value:
            broken = self.decoder.document_check(schema).broken(value[start:], changed[start:])
            if broken is not None:
                raise Misfit(broken[0], "it would not fit the schema any more", broken[1])
        return changed

    def _misfit(self, error: Misfit, edits: Sequence[Edit], schema: SchemaUse, row: int, columns: Columns) -> str:
        """Which field cannot have its mask, of which type it is, and where it was met."""
        rules = [edit.rule for edit in edits]
        named = [rule for rule in rules if error.path and rule.steps[0] == error.path[0]]
        rule = error.rule or (named or [rule for rule in rules if rule.how == "drop"] or rules)[0]
        place = [columns[name][row].as_py() if name in columns else "?" for name in ("topic", "partition", "offset")]
        return (
            f"--mask {rule.shown}: {rule.text} is {error.type} in {schema.subject} version {schema.version} "
            f"({place[0]}-{place[1]} offset {place[2]}): {error.hint}; nothing is written"
        )


# Options -------------------------------------------------------------------------------------------------------------------


def parse_mask(
    fields: str | Sequence[str] | Mapping[str, str],
    secret_file: str | os.PathLike[str] | None = None,
    *,
    keep_sizes: bool = False,
    other: str = "refuse",
) -> Mask:
    """The mask that `value.card=hash,key=drop` describes. OptionError for anything else, and if a secret is needed and there is none;
    AccessError for a file that cannot be read.
    """
    if other not in OTHERS:
        raise unknown("way to handle values that are not JSON", other, OTHERS)
    rules = [_rule(field, how) for field, how in _pairs(fields)]
    if not rules:
        raise OptionError("--mask: nothing named; FIELD=HOW expected, such as value.card=hash")
    names = [rule.text for rule in rules]
    for rule in rules:
        others = [other for other in rules if other.column == rule.column and rule.column != "headers"]
        if names.count(rule.text) > 1 or (len(others) > 1 and any(not other.steps for other in others)):
            raise OptionError(f"--mask {rule.text}: masked twice")
        if rule.how == "drop" and keep_sizes:
            raise OptionError(f"--mask {rule.text}: drop keeps no size; hash, fixed and digits do")
    secret = _secret(secret_file)
    mask = Mask(rules, Masker(secret or b"", keep_sizes=keep_sizes), other)
    if secret is None and mask.needs_secret:
        raise OptionError(f"--mask: hash and digits need a secret: in a file (--mask-secret-file), or in ${SECRET}")
    return mask


def _pairs(fields: str | Sequence[str] | Mapping[str, str]) -> list[tuple[str, str]]:
    if isinstance(fields, Mapping):
        return [(str(field).strip(), str(how)) for field, how in fields.items()]
    texts = [fields] if isinstance(fields, str) else list(fields)
    parts = [part for text in texts for part in re.split(r",(?=[^=,]+=)", text) if part.strip()]
    for part in parts:
        if "=" not in part:
            raise OptionError(f"--mask {part!r}: FIELD=HOW expected, such as value.card=hash")
    return [(field.strip(), how) for field, _, how in (part.partition("=") for part in parts)]


def _rule(text: str, wish: str) -> MaskRule:
    how, _, more = wish.strip().partition(":")
    column, steps = _path(text)
    if column == "timestamp":
        if how != "shift" or steps:
            raise OptionError(f"--mask {text}={wish}: times can only be moved: timestamp=shift:-30d")
        return MaskRule(text, column, (), "shift", shift=parse_span(more))
    if how not in ("drop", "hash", "fixed", "digits") or (more and how != "fixed"):
        raise unknown(f"way to mask {text}", wish.strip(), HOWS)
    if column == "headers" and not steps:
        raise OptionError(f"--mask {text}: name a header, such as headers.user")
    return MaskRule(text, column, steps, how, more.encode())


def _path(text: str) -> tuple[str, tuple[Step, ...]]:
    """`value.items[*].sku` -> the column and the steps from there."""
    column = re.match(r"[^.\[]*", text)[0]  # type: ignore[index]
    if column not in ("key", "value", "headers", "timestamp"):
        raise unknown("field to mask", column, ("key", "value", "headers", "timestamp"))
    if column == "headers":
        return column, (text[len("headers.") :],) if text[len("headers.") :] else ()
    try:
        return column, tuple(parse_steps(text)[1:])
    except ValueError:
        raise OptionError(f"--mask {text}: a field such as value.user or value.items[*].sku expected") from None


def _secret(file: str | os.PathLike[str] | None) -> bytes | None:
    if file is not None:
        try:
            secret = Path(file).read_bytes().rstrip(b"\r\n")
        except OSError as error:
            raise AccessError(f"{os.fspath(file)}: {error.strerror or error}") from None
        where = os.fspath(file)
    elif SECRET in os.environ:
        secret, where = os.environb[SECRET.encode()], f"${SECRET}"
    else:
        return None
    if len(secret) < LEAST_SECRET:
        raise OptionError(f"{where}: the secret of a mask has at least {LEAST_SECRET} bytes, this one {len(secret)}")
    return secret
