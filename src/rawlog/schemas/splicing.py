"""Fields of Avro bodies changed by columns: the kernel says where their bytes are, each distinct value is changed once, and the new bytes
are put into the place of the old ones. All other bytes stay.

What cannot be done so has no `Splicer`: schemas that contain themselves, fields that hold others, entries of maps that are dropped, rules
that meet in one field. Bodies whose blocks of items have their size before them are left out. `AvroEditor` does these one by one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from rawlog.kernels.columns import Splice, spans
from rawlog.reading.masking import EVERY
from rawlog.schemas import avro
from rawlog.schemas.avro import Entries, Program, Type
from rawlog.schemas.editing import INTEGERS, AvroEditor, Edit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rawlog.reading.masking import Rule, Step

NESTED = ("record", "array", "map", "union")
_MORE, _GROUP, _MASK = 0x80, 0x7F, (1 << 64) - 1


class _Unfit(Exception):
    """Rules that cannot be applied by columns."""


@dataclass(slots=True)
class _Place:
    """A part of a schema that a rule leads to: its entries, by the number of the body that each is in."""

    type: Type
    rows: NDArray[np.int64]
    alive: NDArray[np.bool_]


class Splicer:
    """Changes fields of many bodies of one Avro schema at once."""

    def __init__(self, program: Program, editors: dict[int, AvroEditor]) -> None:
        self.program, self.editors = program, editors

    @classmethod
    def of(cls, text: str, referenced: Sequence[str], rules: Sequence[Rule]) -> Splicer | None:
        """What applies the rules to bodies of a schema; None if that is possible only one by one. SchemaError for an invalid schema."""
        try:
            root = avro.parse(text, referenced)
            marked = [one for rule in rules for one in _marked(root, rule.steps, rule)]
        except (_Unfit, avro.NoColumns):
            return None
        for one in marked:
            one.is_marked = True
        if len({id(one) for one in marked}) < len(marked) or any(_holds_mark(one) for one in marked):
            return None
        program = Program(root)
        others = [one for one in marked if one.kind not in ("union", "string", "bytes") or one.logical]
        return cls(program, {one.mark: AvroEditor(_leaf_schema(one)) for one in others if one.kind != "union"})

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
        made: list[Splice] = []
        done, found = np.zeros(rows.size, np.bool_), np.zeros((len(edits), rows.size), np.bool_)
        step = avro.rows_at_once(self.program)
        for first in range(0, rows.size, step):
            part = slice(first, first + step)
            entries = avro.run(self.program, data, starts[part], stops[part])
            good = (entries.status == 0) & ~entries.sized
            done[part] = good
            for number, one in enumerate(edits):
                for place in _places(self.program.type, one.steps, entries, np.arange(good.size), good):
                    found[number, first + place.rows[place.alive]] = True
                    if place.type.is_marked:  # others are nulls: there is nothing to hide
                        made.append(self._change(rows[part], place, entries, one))
        return made, done, found

    def _change(self, rows: NDArray[np.int64], place: _Place, entries: Entries, edit: Edit) -> Splice:
        """The change of the entries of one part."""
        type = place.type
        mark = entries.values(type.mark)
        if type.kind == "union":
            null = next(number for number, one in enumerate(type.inner) if one.kind == "null")
            chosen = np.flatnonzero(place.alive & (entries.values(type.node)[:, 0] != null))
            codes, pieces = np.zeros(chosen.size, np.int64), [_varlong(null)]
        else:
            chosen = np.flatnonzero(place.alive)
            is_text = type.mark not in self.editors
            spots = entries.values(type.node)[chosen] if is_text else mark[chosen]
            sizes = spots[:, 1] if is_text else spots[:, 1] - spots[:, 0]
            values = spans(entries.data, spots[:, 0], sizes).dictionary_encode()
            codes = values.indices.to_numpy(zero_copy_only=False).astype(np.int64)
            pieces = self._masked(type, values.dictionary.to_pylist(), edit)
        return Splice(rows[place.rows[chosen]], mark[chosen, 0], mark[chosen, 1], pieces, codes)

    def _masked(self, type: Type, values: Sequence[bytes], edit: Edit) -> list[bytes]:
        """What distinct values become, as they are encoded."""
        if type.kind in INTEGERS and edit.of_numbers is not None:
            bound = 1 << INTEGERS[type.kind]
            numbers = edit.wholes([_number(one) for one in values], -bound, bound - 1)
            return [_varlong(one) for one in numbers]
        if type.mark in self.editors:
            own = [Edit(replace(edit.rule, steps=()), edit.of_json, edit.of_bytes)]
            return [self.editors[type.mark].edit(one, own)[0] for one in values]
        made = [one or b"" for one in edit.of_all(values)]
        if type.kind == "string":
            made = [one if one.isascii() else one.decode("utf-8", "replace").encode() for one in made]
        lengths = {size: _varlong(size) for size in set(map(len, made))}
        return [lengths[len(one)] + one for one in made]


def _marked(type: Type, steps: tuple[Step, ...], rule: Rule) -> list[Type]:
    """The parts whose bytes change. _Unfit if a rule cannot be applied to one of them, or fits none of its values."""
    if steps:
        return [one for inner, rest in _inside(type, steps, rule) for one in _marked(inner, rest, rule)]
    if type.kind == "null":
        return []
    if rule.how == "drop":
        if type.kind == "union" and any(one.kind == "null" for one in type.inner):
            return [type]
        raise _Unfit
    if type.kind == "union":
        return [one for inner in type.inner for one in _marked(inner, (), rule)]
    if type.kind in NESTED:
        raise _Unfit
    return [type]


def _inside(type: Type, steps: tuple[Step, ...], rule: Rule) -> list[tuple[Type, tuple[Step, ...]]]:
    """The parts that the next step leads to, and the steps from there."""
    if type.kind == "union":
        return [(one, steps) for one in type.inner]
    if type.kind == "record" and steps[0] in type.names:
        return [(type.inner[type.names.index(str(steps[0]))], steps[1:])]
    if type.kind == "array" and isinstance(steps[0], int):
        return [(type.inner[-1], steps[1:])]
    if type.kind == "map" and isinstance(steps[0], str):
        if rule.how == "drop" and not steps[1:]:
            raise _Unfit  # the entry goes
        return [(type.inner[-1], steps[1:])]
    return []


def _holds_mark(type: Type) -> bool:
    return any(one.is_marked or _holds_mark(one) for one in type.inner)


def _leaf_schema(type: Type) -> str:
    """The schema of a part that holds no others."""
    made = {
        "type": type.kind,
        "name": type.name,
        "size": type.size,
        "symbols": type.symbols,
        "logicalType": type.logical,
        "precision": type.precision,
        "scale": type.scale,
    }
    names = {"enum": ("type", "name", "symbols"), "fixed": ("type", "name", "size")}.get(type.kind, ("type",))
    more = ("logicalType", "precision", "scale") if type.logical else ()
    return json.dumps({name: made[name] for name in (*names, *more)})


def _places(
    type: Type, steps: tuple[Step, ...], entries: Entries, rows: NDArray[np.int64], alive: NDArray[np.bool_]
) -> list[_Place]:
    """Where steps lead in the bodies. `rows` are the bodies of the entries of this part, and `alive` says which of them count."""
    if type.kind == "union" and not type.is_marked:
        branch = entries.values(type.node)[:, 0]
        return [
            place
            for number, one in enumerate(type.inner)
            for place in _places(one, steps, entries, rows, alive & (branch == number))
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
    own = alive[parents]
    if type.kind == "map":
        keys = entries.values(type.inner[0].node)
        same = pc.equal(spans(entries.data, keys[:, 0], keys[:, 1]), str(step).encode())
        own &= same.to_numpy(zero_copy_only=False)
    elif step != EVERY:
        own &= np.arange(parents.size) - (ends - sizes)[parents] == step
    return _places(type.inner[-1], rest, entries, rows[parents], own)


def _number(data: bytes) -> int:
    """A number from its bytes in zigzag; they are valid."""
    value = sum((byte & _GROUP) << (7 * place) for place, byte in enumerate(data)) & _MASK
    return (value >> 1) ^ -(value & 1)


def _varlong(value: int) -> bytes:
    """A number of 64 bits in zigzag, as Avro writes lengths, branches and numbers."""
    made, left = bytearray(), (value << 1) ^ (value >> 63)
    while left >= _MORE:
        made.append(left & _GROUP | _MORE)
        left >>= 7
    return bytes((*made, left))
