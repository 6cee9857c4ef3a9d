"""Fields of Avro bodies changed: by columns where the kernel says where their bytes are, else by a walk over single bodies.

Either way the new bytes are put into the place of the old ones, and all other bytes stay. By columns each distinct value is changed once.
What cannot be done so has no `Splicer`: schemas that contain themselves, fields that hold others, entries of maps that are dropped, rules
that meet in one field. Bodies whose blocks of items have their size before them are left out. `AvroEditor` does these one by one.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from rawlog.kernels.columns import Splice, spans
from rawlog.model.table import EVERY
from rawlog.values import avro
from rawlog.values.avro import BodyError, Entries, Part, Program, Type, Walk, encoded_leaf, encoded_long
from rawlog.values.masker import Edit, Misfit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rawlog.model.table import Step
    from rawlog.values.masker import MaskRule

NESTED = ("record", "array", "map", "union")
INTEGERS = {"int": 31, "long": 63}


def masked_leaf(type: Type, value: Any, edit: Edit) -> Any:
    """What a value that holds no others becomes. Misfit if the type cannot have it."""
    name = type_name(type)
    if value is None:
        return None
    if type.kind == "boolean":
        return edit.truth(value, name)
    if type.kind == "enum":
        return edit.symbol(value, name, type.symbols)
    if type.kind in INTEGERS:
        return edit.whole(value, name, -(1 << INTEGERS[type.kind]), (1 << INTEGERS[type.kind]) - 1)
    if type.kind in ("float", "double"):
        return edit.floating(value, name, type.kind == "float")
    if type.kind == "string":
        return _uuid(edit.text(value), name) if type.logical == "uuid" else edit.text(value)
    if type.logical == "decimal":
        return _decimal(value, type, edit)
    masked = edit.of_bytes(value) or b""
    if type.kind == "fixed" and len(masked) != len(value):
        raise Misfit(name, f"it has {len(value)} bytes; --mask-keep-sizes keeps them")
    return masked


def type_name(type: Type) -> str:
    """A type as its schema calls it."""
    if type.kind == "union":
        return f"union of {', '.join(map(type_name, type.inner))}"
    name = f"{type.kind} {type.name}" if type.name else type.kind
    return f"{name} ({type.logical})" if type.logical else name


def _uuid(text: str, name: str) -> str:
    """A hash in the form of a UUID."""
    try:
        return str(uuid.UUID(text.replace("-", "")[:32]))
    except ValueError:
        raise Misfit(name, "hash gives a UUID") from None


def _decimal(value: bytes, type: Type, edit: Edit) -> bytes:
    name, scale = type_name(type), type.scale
    unscaled = int.from_bytes(value, "big", signed=True)
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    text = ("-" if unscaled < 0 else "") + (f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits)
    masked = edit.number(text, name).as_tuple()
    shift = int(masked.exponent) + scale
    number = int("".join(map(str, masked.digits)))
    if shift < 0 and number % 10**-shift:
        raise Misfit(name, f"it has {scale} digits after the point")
    number = number * 10**shift if shift >= 0 else number // 10**-shift
    if number >= 10**type.precision:
        raise Misfit(name, f"it has at most {type.precision} digits")
    number = -number if masked.sign else number
    size = type.size if type.kind == "fixed" else max(1, (number + (number < 0)).bit_length() // 8 + 1)
    return int(number).to_bytes(size, "big", signed=True)


# By columns -------------------------------------------------------------------------------------------------------------


class _NotByColumns(Exception):
    """Rules that cannot be applied by columns."""


@dataclass(slots=True)
class _Place:
    """A part of a schema that a rule leads to: its entries, by the number of the body that each is in."""

    type: Type
    rows: NDArray[np.int64]
    alive: NDArray[np.bool_]


class Splicer:
    """Changes fields of many bodies of one Avro schema at once."""

    def __init__(self, program: Program) -> None:
        self.program = program

    @classmethod
    def of(cls, text: str, referenced: Sequence[str], rules: Sequence[MaskRule]) -> Splicer | None:
        """What applies the rules to bodies of a schema; None if that is possible only one by one. SchemaError for an invalid schema."""
        try:
            root = avro.parse(text, referenced)
            marked = [type for rule in rules for type in _marked(root, rule.steps, rule)]
        except (_NotByColumns, avro.NoColumns):
            return None
        for type in marked:
            type.is_marked = True
        if len({id(type) for type in marked}) < len(marked) or any(map(_holds_mark, marked)):
            return None
        return cls(Program(root))

    def edit(
        self,
        data: NDArray[np.uint8],
        rows: NDArray[np.int64],
        starts: NDArray[np.int64],
        stops: NDArray[np.int64],
        edits: Sequence[Edit],
    ) -> tuple[list[Splice], NDArray[np.bool_], NDArray[np.bool_]]:
        """What changes in the bodies of some rows of a column, which of the bodies that covers, and for each edit which of them have the
        field. Misfit if a field would not fit the schema any more.
        """
        splices: list[Splice] = []
        done, has_field = np.zeros(rows.size, np.bool_), np.zeros((len(edits), rows.size), np.bool_)
        step = avro.rows_at_once(self.program)
        for first in range(0, rows.size, step):
            part = slice(first, first + step)
            entries = avro.run(self.program, data, starts[part], stops[part])
            good = (entries.status == 0) & ~entries.sized
            done[part] = good
            for number, edit in enumerate(edits):
                for place in _places(self.program.type, edit.steps, entries, np.arange(good.size), good):
                    has_field[number, first + place.rows[place.alive]] = True
                    if place.type.is_marked:  # others are nulls: there is nothing to hide
                        splices.append(self._change(rows[part], place, entries, edit))
        return splices, done, has_field

    def _change(self, rows: NDArray[np.int64], place: _Place, entries: Entries, edit: Edit) -> Splice:
        """The change of the entries of one part."""
        type = place.type
        mark = entries.values(type.mark)
        if type.kind == "union":
            null = _null_branch(type)
            chosen = np.flatnonzero(place.alive & (entries.values(type.node)[:, 0] != null))
            codes, pieces = np.zeros(chosen.size, np.int64), [encoded_long(null)]
        else:
            chosen = np.flatnonzero(place.alive)
            is_text = _is_plain_text(type)
            spots = entries.values(type.node)[chosen] if is_text else mark[chosen]
            sizes = spots[:, 1] if is_text else spots[:, 1] - spots[:, 0]
            values = spans(entries.data, spots[:, 0], sizes).dictionary_encode()
            codes = values.indices.to_numpy(zero_copy_only=False).astype(np.int64)
            pieces = _masked_all(type, values.dictionary.to_pylist(), edit)
        return Splice(rows[place.rows[chosen]], mark[chosen, 0], mark[chosen, 1], pieces, codes)


def _is_plain_text(type: Type) -> bool:
    """Whether values are masked as they are, without a look at their type."""
    return type.kind in ("string", "bytes") and not type.logical


def _masked_all(type: Type, values: Sequence[bytes], edit: Edit) -> list[bytes]:
    """What distinct values become, as they are encoded. Plain texts come without their length."""
    if type.kind in INTEGERS and edit.of_numbers is not None:
        bound = 1 << INTEGERS[type.kind]
        numbers = edit.wholes([Walk(value).long() for value in values], -bound, bound - 1)
        return [encoded_long(number) for number in numbers]
    if not _is_plain_text(type):
        return [encoded_leaf(type, masked_leaf(type, Walk(value).leaf(type), edit)) for value in values]
    masks = [mask or b"" for mask in edit.of_all(values)]
    if type.kind == "string":
        masks = [mask if mask.isascii() else mask.decode("utf-8", "replace").encode() for mask in masks]
    lengths = {size: encoded_long(size) for size in set(map(len, masks))}
    return [lengths[len(mask)] + mask for mask in masks]


def _null_branch(type: Type) -> int:
    """The number of the branch of a union that is null; -1 if there is none."""
    return next((number for number, branch in enumerate(type.inner) if branch.kind == "null"), -1)


def _marked(type: Type, steps: tuple[Step, ...], rule: MaskRule) -> list[Type]:
    """The parts whose bytes change. _NotByColumns if a rule cannot be applied to one of them, or fits none of its values."""
    if steps:
        return [part for inner, rest in _inside(type, steps, rule) for part in _marked(inner, rest, rule)]
    if type.kind == "null":
        return []
    if rule.how == "drop":
        if type.kind == "union" and _null_branch(type) >= 0:
            return [type]
        raise _NotByColumns
    if type.kind == "union":
        return [part for inner in type.inner for part in _marked(inner, (), rule)]
    if type.kind in NESTED:
        raise _NotByColumns
    return [type]


def _inside(type: Type, steps: tuple[Step, ...], rule: MaskRule) -> list[tuple[Type, tuple[Step, ...]]]:
    """The parts that the next step leads to, and the steps from there."""
    if type.kind == "union":
        return [(branch, steps) for branch in type.inner]
    if type.kind == "record" and steps[0] in type.names:
        return [(type.inner[type.names.index(str(steps[0]))], steps[1:])]
    if type.kind == "array" and isinstance(steps[0], int):
        return [(type.inner[-1], steps[1:])]
    if type.kind == "map" and isinstance(steps[0], str):
        if rule.how == "drop" and not steps[1:]:
            raise _NotByColumns  # the entry goes
        return [(type.inner[-1], steps[1:])]
    return []


def _holds_mark(type: Type) -> bool:
    return any(inner.is_marked or _holds_mark(inner) for inner in type.inner)


def _places(
    type: Type, steps: tuple[Step, ...], entries: Entries, rows: NDArray[np.int64], alive: NDArray[np.bool_]
) -> list[_Place]:
    """Where steps lead in the bodies. `rows` are the bodies of the entries of this part, and `alive` says which of them count."""
    if type.kind == "union" and not type.is_marked:
        branch = entries.values(type.node)[:, 0]
        return [
            place
            for number, inner in enumerate(type.inner)
            for place in _places(inner, steps, entries, rows, alive & (branch == number))
        ]
    if not steps:
        return [_Place(type, rows, alive)]
    step, rest = steps[0], steps[1:]
    if type.kind == "record" and step in type.names:
        return _places(type.inner[type.names.index(str(step))], rest, entries, rows, alive)
    if type.kind not in ("array", "map") or isinstance(step, int) != (type.kind == "array"):
        return []
    ends = entries.values(type.node)[:, 0]
    sizes = np.diff(ends, prepend=0)
    parents = np.repeat(np.arange(sizes.size), sizes)
    chosen = alive[parents]
    if type.kind == "map":
        keys = entries.values(type.inner[0].node)
        same = pc.equal(spans(entries.data, keys[:, 0], keys[:, 1]), str(step).encode())
        chosen &= same.to_numpy(zero_copy_only=False)
    elif step != EVERY:
        chosen &= np.arange(parents.size) - (ends - sizes)[parents] == step
    return _places(type.inner[-1], rest, entries, rows[parents], chosen)


# One by one -------------------------------------------------------------------------------------------------------------


class AvroEditor:
    """Changes fields of single bodies of one Avro schema."""

    def __init__(self, text: str, referenced: Sequence[str] = ()) -> None:
        """SchemaError if the schema is not valid."""
        self.type = avro.parse_shared(text, referenced)

    def edit(self, body: bytes, edits: Sequence[Edit]) -> tuple[bytes, list[bool]]:
        """A body with changed fields, and for each change whether it has the field. Bytes after the value stay. ValueError if it does not
        fit the schema, Misfit if a field would not fit it any more.
        """
        has_field = []
        for edit in edits:
            walk = _EditWalk(body, edit)
            try:
                with edit.named():
                    walk.run(self.type, edit.steps)
            except BodyError:
                raise ValueError("the value does not fit its schema") from None
            has_field.append(walk.has_field)
            body = walk.result()
        return body, has_field


class _EditWalk(Walk):
    """Changes the parts that steps lead to; what is passed down are the steps from a part on, None for parts that stay."""

    def __init__(self, body: bytes, edit: Edit) -> None:
        super().__init__(body)
        self.edit, self.has_field = edit, False
        #: Bytes that take the place of others: start, stop, and the new ones.
        self.splices: list[tuple[int, int, bytes]] = []

    def result(self) -> bytes:
        """The body with its changes."""
        pieces, at = [], 0
        for start, stop, piece in sorted(self.splices):
            pieces += [self.body[at:start], piece]
            at = stop
        return b"".join((*pieces, self.body[at:]))

    def visit(self, type: Type, about: Any) -> Iterator[Part] | None:
        steps, around = about, type
        union_start, null = self.at, -1
        while type.kind == "union":
            if steps == () and (branch := _null_branch(type)) >= 0:
                union_start, null = self.at, branch
            type = type.inner[self.index(len(type.inner))]
        is_last = steps == ()
        self.has_field |= is_last
        if is_last and type.kind != "null":
            if self.edit.is_drop:
                if null < 0:
                    raise Misfit(type_name(around), "it has no null, so that it cannot be dropped")
                return self._dropped(type, union_start, null)
            if type.kind in NESTED and self.edit.rule.how != "digits":
                raise Misfit(type_name(type), "name the fields in it")
        inside = self._inside(type, steps)
        if inside is None:
            start, value = self.at, self.leaf(type)
            if is_last:
                self.splices.append((start, self.at, encoded_leaf(type, masked_leaf(type, value, self.edit))))
        return inside

    def _inside(self, type: Type, steps: tuple[Step, ...] | None) -> Iterator[Part] | None:
        if type.kind == "record":
            return self._fields(type, steps)
        return self._items(type, steps) if type.kind in ("array", "map") else None

    def _dropped(self, type: Type, start: int, null: int) -> Iterator[Part] | None:
        """Go past a part, and put null in its place."""
        inside = self._inside(type, None)
        if inside is not None:
            return self._then_null(inside, start, null)
        self.leaf(type)
        self.splices.append((start, self.at, encoded_long(null)))
        return None

    def _then_null(self, inside: Iterator[Part], start: int, null: int) -> Iterator[Part]:
        yield from inside
        self.splices.append((start, self.at, encoded_long(null)))

    def _fields(self, type: Type, steps: tuple[Step, ...] | None) -> Iterator[Part]:
        place = type.names.index(str(steps[0])) if steps and steps[0] in type.names else -1
        others = None if steps else steps
        for number, inner in enumerate(type.inner):
            yield inner, steps[1:] if steps and number == place else others

    def _items(self, type: Type, steps: tuple[Step, ...] | None) -> Iterator[Part]:
        wanted, rest = (steps[0], steps[1:]) if steps else (None, None)
        others = None if steps else steps
        is_map, number, begin = type.kind == "map", -1, self.at
        is_entry_drop = is_map and rest == () and self.edit.is_drop
        count, is_sized = self.block()
        while count:
            first, kept, before = self.at, count, len(self.splices)
            for _ in range(count):
                number, start = number + 1, self.at
                step = self.text() if is_map else number
                is_chosen = step == wanted or (wanted == EVERY and not is_map)
                if is_chosen and is_entry_drop:
                    yield type.inner[-1], None
                    self.splices.append((start, self.at, b""))
                    self.has_field, kept = True, kept - 1
                else:
                    yield type.inner[-1], rest if is_chosen else others
            if len(self.splices) > before:
                self._write_header(begin, first, kept, count, is_sized, self.splices[before:])
            begin = self.at
            count, is_sized = self.block()

    def _write_header(
        self, begin: int, first: int, kept: int, count: int, is_sized: bool, splices: list[tuple[int, int, bytes]]
    ) -> None:
        """Correct the number of items in front of a block, and their size. A block without items would end the list: it goes."""
        if kept == count and not is_sized:
            return
        size = self.at - first + sum(len(piece) - (stop - start) for start, stop, piece in splices)
        header = encoded_long(-kept) + encoded_long(size) if is_sized else encoded_long(kept)
        self.splices.append((begin, first, header if kept else b""))
