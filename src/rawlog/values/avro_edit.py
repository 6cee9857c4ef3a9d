"""Fields of Avro bodies changed by columns: the kernel says where their bytes are, each distinct value is changed once, and the new bytes
are put into the place of the old ones. All other bytes stay.

What cannot be done so has no `Splicer`: schemas that contain themselves, fields that hold others, entries of maps that are dropped, rules
that meet in one field. Bodies whose blocks of items have their size before them are left out. `AvroEditor` does these one by one.
"""

from __future__ import annotations

import contextlib
import io
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from rawlog.kernels.columns import Splice, spans
from rawlog.values import avro
from rawlog.values.avro import PRIMITIVES, Entries, NamedTypes, Program, SchemaError, Type, full_name, loaded_schema
from rawlog.values.mask import DROP, EVERY, Masker, Number, Rule, Step

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rawlog.values.mask import Rule, Step


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


# ----------------------------------------------------------------------------------------------------------------------
# Fields of encoded values changed in place: a body is read with its schema, some of its fields are changed, and it is written again with
# the same schema. Here are edits, which all kinds share, Avro, and JSON Schema; Protobuf is in `message_editing`.
# What a field becomes must fit its type, else Misfit says which type it has. fastavro reads and writes. A union keeps its branch: for
# fastavro each branch becomes a record with one field, which has the same bytes and a name.


BRANCH, INNER = "rawlog_branch_", "v"
INTEGERS = {"int": 31, "long": 63}
FLOAT_MAX = 3.4028234663852886e38


class Misfit(ValueError):
    """A field that cannot have what it was to become: its type, and what it can have; the rule, or a path, that leads to it."""

    def __init__(self, type: str, hint: str, path: Sequence[str | int] = ()) -> None:
        super().__init__(type, hint)
        self.type, self.hint, self.path = type, hint, tuple(path)
        self.rule: Rule | None = None


class Edit:
    """The change of a field: a rule, for values of all types."""

    def __init__(
        self,
        rule: Rule,
        of_json: Callable[[Any], Any],
        of_bytes: Callable[[bytes], bytes | None],
        of_all: Callable[[Sequence[bytes]], Sequence[bytes | None]] | None = None,
        of_numbers: Callable[[Sequence[bytes]], Sequence[bytes]] | None = None,
    ) -> None:
        """`of_all` changes many bytes at once, and `of_numbers` many numbers; None if that is known one by one only."""
        self.rule, self.of_json, self.of_bytes, self.of_numbers = rule, of_json, of_bytes, of_numbers
        self.of_all = of_all or (lambda values: [of_bytes(one) for one in values])

    @classmethod
    def of(cls, rule: Rule, masker: Masker) -> Edit:
        """The edit that a rule describes."""
        of_numbers = masker.numbers_all if rule.how == "digits" else None
        return cls(rule, rule.json_mask(masker), rule.bytes_mask(masker), rule.all_mask(masker), of_numbers)

    @property
    def steps(self) -> tuple[Step, ...]:
        return self.rule.steps

    def text(self, value: str) -> str:
        return str(self.of_json(value))

    def number(self, value: str, type: str) -> Decimal:
        """Another number. Misfit for anything else: a hash is a number only if sizes are kept."""
        made = self.of_json(Number(value))
        if isinstance(made, Number) or self.rule.how == "fixed":
            try:
                found = Decimal(made)
                if found.is_finite():
                    return found
            except InvalidOperation:
                pass
        raise Misfit(type, "digits gives a number; fixed:0 too")

    def whole(self, value: int, type: str, low: int, high: int) -> int:
        """Another whole number of a range. A number with other digits may be too large: then its own digits are replaced, and so on. As the
        first number was in the range, one of them is, and different numbers stay different.
        """
        found = self.number(str(value), type)
        while self.rule.how != "fixed" and not low <= found <= high:
            found = self.number(str(found), type)
        if found != found.to_integral_value() or not low <= found <= high:
            raise Misfit(type, f"{found} is not one")
        return int(found)

    def wholes(self, values: Sequence[int], low: int, high: int) -> list[int]:
        """The same for many of the range, by `of_numbers`."""
        assert self.of_numbers is not None
        made = list(values)
        left = list(range(len(made)))
        while left:
            for at, text in zip(left, self.of_numbers([b"%d" % made[at] for at in left]), strict=True):
                made[at] = int(text)
            left = [at for at in left if not low <= made[at] <= high]
        return made

    def floating(self, value: float, type: str, is_single: bool) -> float:
        if value - value != 0:  # NaN and infinity have no digits
            return 0.0 if self.rule.how == "fixed" else value
        found = float(self.number(json.dumps(value), type))
        if abs(found) > (FLOAT_MAX if is_single else 1.7976931348623157e308):
            raise Misfit(type, f"{found} is not one")
        return found

    def truth(self, value: bool, type: str) -> bool:
        made = self.of_json(value)
        if isinstance(made, bool):
            return made
        if self.rule.how == "fixed" and made in ("true", "false"):
            return bool(made == "true")
        raise Misfit(type, "fixed:true and fixed:false are ones")

    def symbol(self, value: str, type: str, symbols: Sequence[str]) -> str:
        made = self.text(value)
        if made not in symbols:
            raise Misfit(type, f"fixed:{symbols[0]} is one" if symbols else "it has no symbols")
        return made


@contextlib.contextmanager
def about(edit: Edit) -> Iterator[None]:
    """Name the rule in a Misfit."""
    try:
        yield
    except Misfit as error:
        error.rule = edit.rule
        raise


def dropped(edit: Edit) -> bool:
    """Whether fields are left out."""
    return edit.rule.how == "drop"


# Avro --------------------------------------------------------------------------------------------------------------------


class AvroEditor:
    """Changes fields of the bodies of one Avro schema."""

    def __init__(self, text: str, referenced: Sequence[str] = ()) -> None:
        """SchemaError if fastavro does not take the schema."""
        import fastavro

        texts = [loaded_schema(one) for one in (*referenced, text)]
        self.named, self.root = NamedTypes(texts), texts[-1]
        self._count, self._branches = 0, {}
        names: dict[str, Any] = {}
        try:
            for one in texts:
                self.schema = fastavro.parse_schema(self._wrapped(one, ""), names, _force=True)
        except (SchemaError, RecursionError):
            raise
        except Exception as error:
            raise SchemaError(f"{type(error).__name__}: {error}") from None

    _branches: dict[str, tuple[Any, str]]

    def _wrapped(self, schema: Any, space: str) -> Any:
        """The schema without logical types and defaults, each branch of a union in a record: its bytes are the same."""
        if isinstance(schema, list):
            return [self._branch(one, space) for one in schema]
        if not isinstance(schema, dict):
            return schema
        kind = schema.get("type")
        left = {name: one for name, one in schema.items() if name not in ("logicalType", "default", "doc", "aliases")}
        if kind in ("record", "error"):
            inner = full_name(schema, space).rpartition(".")[0]
            fields = [
                {"name": one["name"], "type": self._wrapped(one["type"], inner)} for one in schema.get("fields", ())
            ]
            return {**left, "type": "record", "fields": fields}
        for name in ("items", "values", "type"):
            if name in left:
                left[name] = self._wrapped(left[name], space)
        return left

    def _branch(self, schema: Any, space: str) -> Any:
        if schema == "null" or (isinstance(schema, dict) and schema.get("type") == "null"):
            return "null"
        self._count += 1
        name = f"{BRANCH}{self._count}"
        self._branches[f"{space}.{name}" if space else name] = schema, space
        return {"type": "record", "name": name, "fields": [{"name": INNER, "type": self._wrapped(schema, space)}]}

    def edit(self, body: bytes, edits: Sequence[Edit]) -> tuple[bytes, list[bool]]:
        """A body with changed fields, and for each change whether it has the field. Bytes after the value stay. ValueError if it does not
        fit the schema, Misfit if a field would not fit it any more.
        """
        import fastavro

        stream, made = io.BytesIO(body), io.BytesIO()
        try:
            value = fastavro.schemaless_reader(stream, self.schema, None, return_record_name=True)
        except Exception as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None
        found = []
        for one in edits:
            with about(one):
                is_found, value = self._edit(value, self.root, "", one.steps, one)
            found.append(is_found)
        if not any(found):
            return body, found
        fastavro.schemaless_writer(made, self.schema, value)
        return made.getvalue() + body[stream.tell() :], found

    def _edit(self, value: Any, schema: Any, space: str, steps: tuple[Step, ...], edit: Edit) -> tuple[bool, Any]:
        """Whether there is the field that steps lead to, and the value with it changed; DROP for one that is left out."""
        if isinstance(schema, list):
            return self._in_union(value, schema, steps, edit)
        schema, space = self.named.resolved(schema, space)
        kind = schema.get("type") if isinstance(schema, dict) else schema
        if isinstance(kind, (dict, list)):
            return self._edit(value, kind, space, steps, edit)
        if not steps:
            return True, DROP if dropped(edit) and value is not None else self._masked(value, schema, space, edit)
        step, rest = steps[0], steps[1:]
        if kind in ("record", "error"):
            inner = full_name(schema, space).rpartition(".")[0]
            types = {one["name"]: one["type"] for one in schema["fields"]}
            return self._each(value, [step] if step in types else [], lambda name: types[name], inner, rest, edit)
        if kind == "array" and isinstance(step, int):
            places = [*range(len(value))] if step == EVERY else [step] if step < len(value) else []
            return self._each(value, places, lambda _: schema["items"], space, rest, edit)
        if kind == "map":
            found = step in value
            is_found, value = self._each(
                value, [step] if found and rest else [], lambda _: schema["values"], space, rest, edit
            )
            if rest or not found:
                return is_found, value
            if dropped(edit):
                return True, {name: one for name, one in value.items() if name != step}
            _, made = self._edit(value[step], schema["values"], space, (), edit)
            return True, {**value, step: made}
        return False, value

    def _each(
        self,
        value: Any,
        places: Sequence[Any],
        type_at: Callable[[Any], Any],
        space: str,
        rest: tuple[Step, ...],
        edit: Edit,
    ) -> tuple[bool, Any]:
        found = False
        for place in places:
            is_found, made = self._edit(value[place], type_at(place), space, rest, edit)
            if made is DROP:
                raise Misfit(self._name(type_at(place), space), "it has no null, so that it cannot be dropped")
            found |= is_found
            value[place] = made
        return found, value

    def _in_union(self, value: Any, schema: list[Any], steps: tuple[Step, ...], edit: Edit) -> tuple[bool, Any]:
        if value is None:
            return not steps, None
        name, inner = value
        branch, space = self._branches[name]
        found, made = self._edit(inner[INNER], branch, space, steps, edit)
        if made is DROP:
            has_null = any(one == "null" or (isinstance(one, dict) and one.get("type") == "null") for one in schema)
            return found, None if has_null else DROP
        return found, (name, {INNER: made})

    def _masked(self, value: Any, schema: Any, space: str, edit: Edit) -> Any:
        """A value as it is masked as a whole; all that it holds, if it holds others and the mask keeps the form."""
        kind = schema.get("type") if isinstance(schema, dict) else schema
        about = schema if isinstance(schema, dict) else {}
        name = self._name(schema, space)
        if value is None:
            return None
        if kind in ("record", "error", "array", "map"):
            if edit.rule.how != "digits":
                raise Misfit(name, "name the fields in it")
            return self._inside(value, schema, kind, space, edit)
        if kind == "boolean":
            return edit.truth(value, name)
        if kind == "enum":
            return edit.symbol(value, name, schema.get("symbols", ()))
        if kind in INTEGERS:
            return edit.whole(value, name, -(1 << INTEGERS[kind]), (1 << INTEGERS[kind]) - 1)
        if kind in ("float", "double"):
            return edit.floating(value, name, kind == "float")
        if kind == "string":
            return _uuid(edit.text(value), name) if about.get("logicalType") == "uuid" else edit.text(value)
        return _decimal(value, about, edit, name) if _is_decimal(about) else _sized(value, about, edit, name)

    def _inside(self, value: Any, schema: Any, kind: Any, space: str, edit: Edit) -> Any:
        if kind == "array":
            return [self._edit(one, schema["items"], space, (), edit)[1] for one in value]
        if kind == "map":
            return {name: self._edit(one, schema["values"], space, (), edit)[1] for name, one in value.items()}
        inner = full_name(schema, space).rpartition(".")[0]
        return {
            one["name"]: self._edit(value[one["name"]], one["type"], inner, (), edit)[1] for one in schema["fields"]
        }

    def _name(self, schema: Any, space: str) -> str:
        """A type as the schema calls it."""
        if isinstance(schema, list):
            return f"union of {', '.join(self._name(one, space) for one in schema)}"
        if isinstance(schema, str):
            return schema
        kind = schema.get("type")
        if isinstance(kind, (dict, list)):
            return self._name(kind, space)
        if kind not in (*PRIMITIVES, "array", "map"):
            kind = f"{kind} {full_name(schema, space)}" if "name" in schema else kind
        return f"{kind} ({schema['logicalType']})" if isinstance(schema.get("logicalType"), str) else str(kind)


def _uuid(text: str, name: str) -> str:
    """A hash in the form of a UUID."""
    try:
        return str(uuid.UUID("".join(one for one in text if one != "-")[:32]))
    except ValueError:
        raise Misfit(name, "hash gives a UUID") from None


def _is_decimal(about: Mapping[str, Any]) -> bool:
    precision, scale = about.get("precision"), about.get("scale", 0)
    return (
        about.get("logicalType") == "decimal"
        and isinstance(precision, int)
        and isinstance(scale, int)
        and 0 <= scale <= precision
        and precision >= 1
    )


def _decimal(value: bytes, about: Mapping[str, Any], edit: Edit, name: str) -> bytes:
    scale, precision = int(about.get("scale", 0)), int(about["precision"])
    unscaled = int.from_bytes(value, "big", signed=True)
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    text = ("-" if unscaled < 0 else "") + (f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits)
    found = edit.number(text, name).as_tuple()
    shift = int(found.exponent) + scale
    number = int("".join(map(str, found.digits)))
    if shift < 0 and number % 10**-shift:
        raise Misfit(name, f"it has {scale} digits after the point")
    number = number * 10**shift if shift >= 0 else number // 10**-shift
    if number >= 10**precision:
        raise Misfit(name, f"it has at most {precision} digits")
    number = -number if found.sign else number
    size = int(about["size"]) if about.get("type") == "fixed" else max(1, (number + (number < 0)).bit_length() // 8 + 1)
    return int(number).to_bytes(size, "big", signed=True)


def _sized(value: bytes, about: Mapping[str, Any], edit: Edit, name: str) -> bytes:
    made = edit.of_bytes(value) or b""
    if about.get("type") == "fixed" and len(made) != len(value):
        raise Misfit(name, f"it has {len(value)} bytes; --mask-keep-sizes keeps them")
    return made


# JSON Schema -------------------------------------------------------------------------------------------------------------


class DocumentCheck:
    """Says whether JSON texts that were changed still fit their JSON Schema."""

    def __init__(self, text: str, referenced: Sequence[tuple[str, str]] = ()) -> None:
        """`referenced` are names and texts of schemas that it uses. SchemaError if it is not a schema."""
        try:
            import jsonschema
            from referencing import Registry, Resource
            from referencing.jsonschema import DRAFT7
        except ImportError:
            raise SchemaError("JSON Schema needs jsonschema: install the extra `schemas`") from None
        schema = loaded_schema(text)
        known: Any = Registry()
        for name, one in referenced:
            resource = Resource.from_contents(loaded_schema(one), default_specification=DRAFT7)
            known = known.with_resources([(name, resource)])
        kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft7Validator)
        try:
            kind.check_schema(schema)
        except jsonschema.SchemaError as error:
            raise SchemaError(str(error).splitlines()[0]) from None
        self.validator = kind(schema, registry=known)

    def check(self, before: bytes, after: bytes) -> None:
        """Misfit if a text fitted the schema before it was changed, and does not any more."""
        from referencing.exceptions import Unresolvable

        try:
            wrong = next(self.validator.iter_errors(json.loads(after)), None)
            if wrong is None or next(self.validator.iter_errors(json.loads(before)), None) is not None:
                return
        except (Unresolvable, RecursionError):
            return  # the schema says nothing that can be checked
        kind = f"{wrong.validator} {json.dumps(wrong.validator_value)[:80]}"
        raise Misfit(kind, "it would not fit the schema any more", list(wrong.absolute_path))
