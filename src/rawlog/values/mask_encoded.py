"""SchemaMask: masking of fields in values of a schema registry. They are written again with the same schema and the same framing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa

from rawlog.kernels.columns import Splices
from rawlog.model.errors import OptionError
from rawlog.values import protobuf
from rawlog.values.avro import SchemaError
from rawlog.values.avro_edit import Edit, Misfit
from rawlog.values.decode import Decoder
from rawlog.values.mask import Mask, Masker, Rule
from rawlog.values.protobuf_edit import UnknownType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rawlog.model.table import Table
    from rawlog.values.decode import Decoded
    from rawlog.values.mask import Change
    from rawlog.values.registry import Catalog, Found
    from rawlog.values.transform import Wish

Columns = Mapping[str, pa.Array]


class SchemaMask(Mask):
    """A mask that knows schemas. It must be bound to those of a tree. Values without a schema are masked as JSON texts."""

    unread = "neither JSON nor of a schema that is known"

    def __init__(
        self,
        rules: Sequence[Rule],
        masker: Masker,
        other: str,
        wishes: Mapping[str, Wish],
        source: str | None = None,
        decoder: Decoder | None = None,
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
        decoder = Decoder(catalog, {side: one.how for side, one in self.wishes.items()})
        return type(self)(self.rules, self.masker, self.other, self.wishes, self.source, decoder)

    def _has_schemas(self, side: str) -> bool:
        return side in self.wishes and self.wishes[side].how not in ("raw", "string")

    def needs(self, table: Table, names: Sequence[str]) -> Sequence[str]:
        """The same columns, and those that name the schema and the place."""
        names = super().needs(table, names)
        sides = [one for one in ("key", "value") if one in names and one in self.columns and self._has_schemas(one)]
        more = ("headers", "topic", "partition", "offset") if sides else ()
        return [*names, *(one for one in more if one in table.names and one not in names)]

    def _fields(self, name: str, columns: Columns, rules: Sequence[Rule]) -> pa.Array:
        """Fields of values, each written again with its own schema. OptionError for a field that cannot have its mask."""
        if not self._has_schemas(name):
            return super()._fields(name, columns, rules)
        if self.decoder is None:
            raise OptionError("--decode: rows are not decoded here")
        column = columns[name]
        topics = columns["topic"] if "topic" in columns else pa.nulls(len(column), pa.string())
        found = self.decoder.decode(column, columns.get("headers"), topics, name, with_text=False)
        changes = self.changes(rules)
        edits = [Edit.of(rule, self.masker) for rule in rules]
        splices = Splices(column)
        left = splices.valid.copy()
        for number, schema in enumerate(found.used):
            if schema.schema.type == "AVRO":
                rows = np.flatnonzero(found.schema == number)
                left[rows] = ~self._spliced(splices, rows, found, schema, edits)
        rows = np.flatnonzero(left & (found.schema < 0))
        left[rows] = ~self.spliced(splices, rows, changes)
        if self.masker.keep_sizes:
            self.counts["", "larger"] += int(np.count_nonzero(splices.growth()))
        rows = np.flatnonzero(left)
        made: list[bytes | None] = []
        for row, value in zip(rows.tolist(), column.take(pa.array(rows)).to_pylist(), strict=True):
            if found.found(row) is None:
                made.append(self.changed(value, changes))
            else:
                made.append(self._edited(row, value, found, columns, changes, edits))
        splices.replace(rows, made)
        return splices.result()

    def _spliced(
        self, splices: Splices, rows: NDArray[np.int64], found: Decoded, schema: Found, edits: Sequence[Edit]
    ) -> NDArray[np.bool_]:
        """Change fields of Avro values of one schema by columns; which of them were changed so. The others are to be changed one by one,
        also those of a schema that cannot be used or does not fit a rule: then the place is known.
        """
        assert self.decoder is not None
        assert found.framed is not None
        try:
            splicer = self.decoder.splicer(schema, [one.rule for one in edits])
            if splicer is None:
                return np.zeros(rows.size, np.bool_)
            starts, stops = found.framed.start[rows], found.framed.stop[rows]
            made, done, is_found = splicer.edit(splices.data, rows, starts, stops, edits)
        except (Misfit, SchemaError, LookupError):
            return np.zeros(rows.size, np.bool_)
        for one in made:
            splices.put(one)
        for edit, there in zip(edits, is_found, strict=True):
            self.count_masked(edit.rule, done, there)
        return done

    def _edited(
        self,
        row: int,
        value: bytes,
        found: Decoded,
        columns: Columns,
        changes: Sequence[Change],
        edits: Sequence[Edit],
    ) -> bytes | None:
        """A value that was decoded, with changed fields."""
        schema = found.found(row)
        assert schema is not None
        assert self.decoder is not None
        start = len(value) - found.body_size(row)
        try:
            if schema.schema.type == "JSON":
                made = self.changed(value, changes, start)
                if made is not None and made != value:
                    self.decoder.document_check(schema).check(value[start:], made[start:])
                return made
            if row in found.messages and not found.has_header(row):
                start += protobuf.read_indexes(value[start:])[1]
            path = found.messages[row][1] if row in found.messages else ()
            body, is_found = self.decoder.editor(schema, path).edit(value[start:], edits)
        except Misfit as error:
            if isinstance(error, UnknownType) and self.other != "refuse":
                return self.not_read(value, [one.rule for one in edits])
            raise OptionError(self._misfit(error, edits, found, row, columns)) from None
        except (SchemaError, LookupError) as error:
            name = f"{schema.subject} version {schema.version}"
            raise OptionError(f"--mask: {name}: the schema cannot be used: {error}") from None
        except ValueError:  # of a text that is not UTF-8, for example
            return self.not_read(value, [one.rule for one in edits])
        for rule, there in zip((one.rule for one in edits), is_found, strict=True):
            self.counts[rule.text, "masked" if there else "missing"] += 1
        self.counts["", "larger"] += self.masker.keep_sizes and len(body) != len(value) - start
        return value[:start] + body

    def _misfit(self, error: Misfit, edits: Sequence[Edit], found: Decoded, row: int, columns: Columns) -> str:
        """Which field cannot have its mask, of which type it is, and where it was met."""
        schema = found.found(row)
        assert schema is not None
        rules = [one.rule for one in edits]
        named = [rule for rule in rules if error.path and rule.steps[0] == error.path[0]]
        rule = error.rule or (named or [rule for rule in rules if rule.how == "drop"] or rules)[0]
        place = [columns[name][row].as_py() if name in columns else "?" for name in ("topic", "partition", "offset")]
        return (
            f"--mask {rule.shown}: {rule.text} is {error.type} in {schema.subject} version {schema.version} "
            f"({place[0]}-{place[1]} offset {place[2]}): {error.hint}; nothing is written"
        )
