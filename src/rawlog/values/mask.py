"""Masking: rows that may be shared, because chosen fields are dropped, hashed, fixed or replaced by others of the same form.

Equal texts give equal masks in every field, topic and system, so that masked rows can still be joined. Hashes and formats depend on a
secret. Tests of a selection see the rows as they were.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from json.encoder import encode_basestring, encode_basestring_ascii
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from rawlog import kernels
from rawlog.kernels import grammar
from rawlog.kernels.gather import OTHER, TEXT
from rawlog.model.errors import AccessError, OptionError, unknown
from rawlog.model.table import HEADERS
from rawlog.model.text import counted, parse_span
from rawlog.reading.fields import can_mark, marked_fields

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from rawlog.kernels.columns import Splices
    from rawlog.model.table import Table
    from rawlog.reading.select import Tally


# ----------------------------------------------------------------------------------------------------------------------
# Masker: the masks of texts, keyed hashes and other texts of the same form. Kernels make them; without a compiler Python does.


#: Hexadecimal digits of a hash whose size is not that of its source.
HASH_SIZE = 32
ROUNDS = 10
#: Bytes that kernels need next to the longest text.
_SPARE = 64
#: So many masks are remembered, so that equal texts cost nothing.
MOST_KNOWN = 1 << 16


class Masker:
    """The masks of texts. Those that depend on the secret are the same wherever the secret is."""

    def __init__(self, secret: bytes, *, keep_sizes: bool = False) -> None:
        self._secret, self.keep_sizes = secret, keep_sizes
        self._known: dict[tuple[str, bytes], bytes] = {}
        self._made: _Many | None = None

    def __repr__(self) -> str:
        return "Masker()"  # a secret is never shown

    @property
    def _many(self) -> _Many | None:
        """What masks many texts, where kernels are compiled: here, which may not be where the masker was made."""
        if kernels.MODE == "plain":
            return None
        if self._made is None:
            self._made = _Many(self._secret)
        return self._made

    @property
    def fingerprint(self) -> str:
        """What tells secrets apart without showing them."""
        return self._stream(b"fingerprint", 4).hex()

    def hash(self, text: bytes) -> bytes:
        """A keyed hash in hexadecimal digits; as long as the text if sizes are kept."""
        size = len(text) if self.keep_sizes else HASH_SIZE
        return self._remembered("hash", text, lambda: self._stream(b"hash" + text, size // 2 + 1).hex().encode()[:size])

    def digits(self, text: bytes) -> bytes:
        """Other digits for digits and other letters for letters; everything else, and the length, stays. Texts that differ stay different,
        if they are ASCII.
        """
        return self._remembered("digits", text, lambda: self._permuted_all([text], is_number=False)[0])

    def number(self, text: bytes) -> bytes:
        """The same for a number: it stays one with as many digits."""
        return self._remembered("number", text, lambda: self._permuted_all([text], is_number=True)[0])

    def hash_all(self, texts: Sequence[bytes]) -> list[bytes]:
        """The hashes of many texts."""
        many = self._many
        if many is None:
            return [self.hash(one) for one in texts]
        return many.hashes(texts, None if self.keep_sizes else HASH_SIZE)

    def digits_all(self, texts: Sequence[bytes]) -> list[bytes]:
        """The same as `digits` for many texts."""
        return self._permuted_all(texts, is_number=False)

    def numbers_all(self, texts: Sequence[bytes]) -> list[bytes]:
        """The same as `number` for many numbers."""
        return self._permuted_all(texts, is_number=True)

    def fixed(self, text: bytes, new: bytes) -> bytes:
        """Another text; cut or filled with `x` to the same length if sizes are kept."""
        return new[: len(text)].ljust(len(text), b"x") if self.keep_sizes else new

    def _remembered(self, how: str, text: bytes, make: Callable[[], bytes]) -> bytes:
        found = self._known.get((how, text))
        if found is None:
            found = make()
            if len(self._known) < MOST_KNOWN:
                self._known[how, text] = found
        return found

    def _stream(self, text: bytes, size: int) -> bytes:
        """So many bytes that only the secret tells."""
        return hashlib.shake_256(hmac.digest(self._secret, text, "sha256")).digest(size)

    def _permuted_all(self, texts: Sequence[bytes], *, is_number: bool) -> list[bytes]:
        """Other texts of the same forms. The kernel knows ASCII only."""
        slow, many = self._other_number_text if is_number else self._in_form, self._many
        if many is None:
            return [slow(one) for one in texts]
        quick = iter(many.permuted([one for one in texts if one.isascii()], is_number=is_number))
        return [next(quick) if one.isascii() else slow(one) for one in texts]

    def _other_number_text(self, text: bytes) -> bytes:
        return self._other_number(text.decode()).encode()

    def _in_form(self, text: bytes) -> bytes:
        try:
            code, decoded = "utf-8", text.decode()
        except UnicodeDecodeError:
            code, decoded = "latin-1", text.decode("latin-1")
        return self._permuted(decoded, [_alphabet(one) for one in decoded]).encode(code)

    def _other_number(self, text: str) -> str:
        mantissa, mark, exponent = re.match(r"([^eE]*)([eE]?)(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
        alphabets = ["0123456789" if one.isdecimal() else "" for one in mantissa]
        first = mantissa.startswith("-")
        if mantissa[first : first + 2].isdecimal() and mantissa[first] != "0" and len(mantissa) > first + 1:
            alphabets[first] = "123456789"  # JSON has no number that begins with 0
        return self._permuted(mantissa, alphabets) + mark + exponent

    def _permuted(self, text: str, alphabets: Sequence[str]) -> str:
        """A permutation of all texts of this form: a Feistel network over the places of its digits and letters, each with its own base."""
        places = [number for number, alphabet in enumerate(alphabets) if alphabet]
        bases = [len(alphabets[place]) for place in places]
        values = [_index(alphabets[place], text[place]) for place in places]
        form = "".join(alphabet[:1] or one for one, alphabet in zip(text, alphabets, strict=True)).encode(
            "utf-8", "surrogatepass"
        )
        half = (len(places) + 1) // 2
        for number in range(ROUNDS):
            one, other = (slice(0, half), slice(half, None)) if number % 2 == 0 else (slice(half, None), slice(0, half))
            message = b"form%d:%s:%s" % (number, form, bytes(values[other]))
            stream = self._stream(message, 4 * len(values[one]))
            added = (int.from_bytes(stream[at : at + 4], "big") for at in range(0, len(stream), 4))
            values[one] = [
                (value + more) % base for value, more, base in zip(values[one], added, bases[one], strict=True)
            ]
        made = list(text)
        for place, value in zip(places, values, strict=True):
            made[place] = alphabets[place][value]
        return "".join(made)


class _Many:
    """The masks of many texts by kernels: what `Masker` does one by one."""

    def __init__(self, secret: bytes) -> None:
        from rawlog.kernels.keyed import key_pads

        self.pads = key_pads(secret)

    def hashes(self, texts: Sequence[bytes], size: int | None) -> list[bytes]:
        """The hash of each text in so many digits; None: as many as it has bytes."""
        from rawlog.kernels.keyed import hash_texts

        data, edges, block, room = self._laid(texts)
        sizes = np.diff(edges)
        wanted = sizes if size is None else np.full(len(texts), size, np.int64)
        message = np.zeros(int(sizes.max(initial=0)) + _SPARE, np.uint8)
        message[:4] = np.frombuffer(b"hash", np.uint8)
        out = np.empty(int(wanted.sum()), np.uint8)
        hash_texts(data, edges[:-1], sizes, wanted, self.pads, message, block, room, out)
        return _cut(out, np.concatenate(([0], np.cumsum(wanted))))

    def permuted(self, texts: Sequence[bytes], *, is_number: bool) -> list[bytes]:
        """Other texts, or numbers, of the same forms; all are ASCII."""
        from rawlog.kernels.keyed import permute_texts

        data, edges, block, room = self._laid(texts)
        most = int(np.diff(edges).max(initial=0))
        message, out = np.zeros(2 * most + _SPARE, np.uint8), data.copy()
        places, values, bases = np.zeros((3, most + 1), np.int64)
        permute_texts(
            data, edges[:-1], edges[1:], is_number, self.pads, message, block, room, places, values, bases, out
        )
        return _cut(out, edges)

    def _laid(self, texts: Sequence[bytes]) -> tuple[Any, Any, Any, Any]:
        """The texts end to end, their edges, and what a kernel needs to work."""
        from rawlog.kernels.hashes import SCRATCH
        from rawlog.kernels.keyed import ROOM

        edges = np.zeros(len(texts) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)), out=edges[1:])
        return (
            kernels.byte_view(b"".join(texts)),
            edges,
            np.zeros(SCRATCH, np.uint8),
            np.zeros(ROOM, np.int64),
        )


def _cut(data: NDArray[np.uint8], edges: NDArray[np.int64]) -> list[bytes]:
    whole, places = data.tobytes(), edges.tolist()
    return [whole[start:stop] for start, stop in pairwise(places)]


def _alphabet(one: str) -> str:
    if one.isdigit():
        return "0123456789"
    if not one.isalpha():
        return ""
    return "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if one.isupper() else "abcdefghijklmnopqrstuvwxyz"


def _index(alphabet: str, one: str) -> int:
    found = alphabet.find(one)
    return found if found >= 0 else ord(one) % len(alphabet)


SECRET = "RAWLOG_MASK_SECRET"  # noqa: S105 - the name of a variable
LEAST_SECRET = 8
HOWS = ("drop", "hash", "fixed:TEXT", "digits", "shift:TIME")
#: What is done with values that are not JSON, if fields are masked.
OTHERS = ("refuse", "keep", "drop", "hash")
#: A step to every item of a list.
EVERY = -1
Step = str | int
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d{1,9}|\*)\]")
#: What a schema registry puts before a JSON text: a zero and the number of the schema.
_FRAME = 5


class Dropped:
    """What takes the place of something that is left out."""


DROP = Dropped()


class Number(str):
    """A number of a JSON text, as it is written there."""

    __slots__ = ()


#: A rule, and what it makes of a value in a JSON text.
Change = tuple["Rule", Callable[[Any], Any]]


class _Object(list[tuple[str, Any]]):
    """An object of a JSON text: its members in order; a name may be there twice."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One field and its mask: `drop`, `hash`, `fixed`, `digits`, or for times `shift`."""

    text: str
    column: str
    steps: tuple[Step, ...]
    how: str
    fixed: bytes = b""
    shift: int = 0

    @property
    def shown(self) -> str:
        """The rule, as it is written in a list of them."""
        more = {"fixed": f":{self.fixed.decode()}", "shift": f":{self.shift}"}.get(self.how, "")
        return f"{self.text}={self.how}{more}"

    def bytes_mask(self, masker: Masker) -> Callable[[bytes], bytes | None]:
        """What bytes are replaced by; None: they are dropped."""
        if self.how == "drop":
            return lambda _: None
        if self.how == "fixed":
            return lambda text: masker.fixed(text, self.fixed)
        return masker.hash if self.how == "hash" else masker.digits

    def all_mask(self, masker: Masker) -> Callable[[Sequence[bytes]], Sequence[bytes | None]]:
        """The same for many at once."""
        if self.how in ("hash", "digits"):
            return masker.hash_all if self.how == "hash" else masker.digits_all
        of_bytes = self.bytes_mask(masker)
        return lambda texts: [of_bytes(one) for one in texts]

    def json_mask(self, masker: Masker) -> Callable[[Any], Any]:
        """What a value in a JSON text is replaced by. Null stays null, as there is nothing to hide."""
        of_bytes = self.bytes_mask(masker)

        def change(value: Any) -> Any:
            if value is None:
                return None
            if self.how == "drop":
                return DROP
            if self.how == "digits" and isinstance(value, _Object):
                return _Object((name, change(one)) for name, one in value)
            if self.how == "digits" and isinstance(value, list):
                return [change(one) for one in value]
            if isinstance(value, Number) and (self.how == "digits" or (self.how == "hash" and masker.keep_sizes)):
                return Number(masker.number(value.encode()).decode())
            if self.how == "digits" and not isinstance(value, str):
                return value
            text = value if isinstance(value, str) else _dumped(value, ",", ":", encode_basestring)
            return (of_bytes(text.encode("utf-8", "surrogatepass")) or b"").decode("utf-8", "replace")

        return change


class Mask:
    """The transform of a selection that masks fields of keys, values and headers, and moves times."""

    is_tested, is_shown = False, True
    #: What values are that have no fields that can be masked.
    unread = "not JSON"

    def __init__(self, rules: Sequence[Rule], masker: Masker, other: str = "refuse") -> None:
        """`other` is what is done with keys and values that are not JSON if fields of them are masked (OTHERS)."""
        self.rules, self.masker, self.other = tuple(rules), masker, other
        self.counts: Tally = Counter()

    def __repr__(self) -> str:
        made = ",".join(rule.shown for rule in self.rules)
        sizes = ", sizes kept" if self.masker.keep_sizes else ""
        return f"masked {made}{sizes}" + (f", secret {self.masker.fingerprint}" if self.needs_secret else "")

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
        made = dict(columns)
        for name in self.columns & columns.keys():
            rules = [rule for rule in self.rules if rule.column == name]
            if name == "timestamp":
                made[name] = self._shifted(columns[name], rules[0])
            elif name != "headers":
                whole = [rule for rule in rules if not rule.steps]
                change = self._whole if whole else self._fields
                made[name] = change(name, columns, whole or rules)
        if "headers" in columns and self.columns & {"headers", "key"}:
            made["headers"] = self._headers(columns["headers"], columns.get("key"), made.get("key"))
        import pyarrow as pa

        return pa.RecordBatch.from_arrays([made[name] for name in columns], schema=batch.schema)

    def _shifted(self, column: pa.Array, rule: Rule) -> pa.Array:
        import pyarrow as pa
        import pyarrow.compute as pc

        self.counts[rule.text, "masked"] += len(column)
        return pc.add_checked(column.cast(pa.int64()), rule.shift).cast(column.type)

    def _whole(self, name: str, columns: Mapping[str, pa.Array], rules: Sequence[Rule]) -> pa.Array:
        """Whole keys or values."""
        import pyarrow as pa

        [rule], column = rules, columns[name]
        self.counts[rule.text, "masked"] += len(column)
        change, values = rule.all_mask(self.masker), column.dictionary_encode()
        made = pa.array(change(values.dictionary.to_pylist()), column.type)
        return made.take(values.indices)

    def _fields(self, name: str, columns: Mapping[str, pa.Array], rules: Sequence[Rule]) -> pa.Array:
        """Fields of values that are JSON texts. Others are counted."""
        import pyarrow as pa

        from rawlog.kernels.columns import Splices

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
        spans, done, found = marked_fields(
            splices.data, np.minimum(starts + _FRAME * is_framed, stops), stops, paths, drops
        )
        for number, (rule, change) in enumerate(changes):
            self.count_masked(rule, done, done & ((found >> number) & 1 == 1))
            own = spans[spans[:, 3] == number]
            for kind in np.unique(own[:, 4]).tolist():
                self._splice(splices, rows, own[own[:, 4] == kind], kind, rule, change)
        return done

    def count_masked(self, rule: Rule, done: NDArray[np.bool_], found: NDArray[np.bool_]) -> None:
        """Count the values, of those that are done, in which a rule found its field, and the others."""
        masked = int(np.count_nonzero(found))
        self.counts[rule.text, "masked"] += masked
        self.counts[rule.text, "missing"] += int(np.count_nonzero(done)) - masked

    def _splice(
        self,
        splices: Splices,
        rows: NDArray[np.int64],
        spans: NDArray[np.int64],
        kind: int,
        rule: Rule,
        change: Callable[[Any], Any],
    ) -> None:
        """Put the masks of values of one kind into their place; each distinct value is masked once."""
        from rawlog.kernels.columns import Splice
        from rawlog.kernels.columns import spans as column_of

        starts, stops = spans[:, 1], spans[:, 2]
        if kind in (grammar.MEMBER, grammar.ITEM):
            pieces, codes = [b"null" if kind == grammar.ITEM else b""], np.zeros(starts.size, np.int64)
        else:
            quote = int(kind == TEXT)
            values = column_of(splices.data, starts + quote, stops - starts - 2 * quote).dictionary_encode()
            codes, known = values.indices.to_numpy(zero_copy_only=False).astype(np.int64), values.dictionary.to_pylist()
            if quote:
                texts = ((one or b"").decode("utf-8", "replace") for one in rule.all_mask(self.masker)(known))
                pieces = [encode_basestring(one).encode() for one in texts]
            elif kind == OTHER and rule.how == "digits":
                made = iter(self.masker.numbers_all([one for one in known if one[:1] not in b"tf"]))
                pieces = [one if one[:1] in b"tf" else next(made) for one in known]  # true and false stay
            else:
                pieces = [_encoded(change(_parsed(one)), one) for one in known]
        splices.put(Splice(rows[spans[:, 0]], starts, stops, pieces, codes))

    def changes(self, rules: Sequence[Rule]) -> list[Change]:
        """Rules with what they do to a value in a JSON text."""
        return [(rule, rule.json_mask(self.masker)) for rule in rules]

    def changed(self, value: bytes, changes: Sequence[Change], start: int | None = None) -> bytes | None:
        """A value with changed fields; its text begins at `start`, by default after the name of a schema, if it begins with one."""
        if start is None:
            start = _FRAME if value[:1] == b"\0" else 0
        try:
            document = _parsed(value[start:])
            if document is not None and not isinstance(document, list):
                raise ValueError("a number or a text has no fields")
        except (ValueError, RecursionError):
            return self.not_read(value, [rule for rule, _ in changes])
        is_changed = False
        for rule, change in changes:
            found = _change(document, rule.steps, change)
            self.counts[rule.text, "masked" if found else "missing"] += 1
            is_changed |= found
        if not is_changed:
            return value
        made = _encoded(document, value)
        if self.masker.keep_sizes:
            made = made.ljust(len(value) - start)
            self.counts["", "larger"] += len(made) > len(value) - start
        return value[:start] + made

    def not_read(self, value: bytes, rules: Sequence[Rule]) -> bytes | None:
        """The replacement of a value whose fields are not known. It is counted for each rule."""
        for rule in rules:
            self.counts[rule.text, "not JSON"] += 1
        return None if self.other == "drop" else self.masker.hash(value) if self.other == "hash" else value

    def _headers(self, column: pa.Array, old: pa.Array | None, new: pa.Array | None) -> pa.Array:
        """The headers of rows, masked by their names, or as the key if they repeat it."""
        import pyarrow as pa

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
            for one in headers:
                rule, value = masks.get(one["key"]), one["value"]
                if rule is not None:
                    self.counts[rule.text, "masked"] += 1
                    if rule.how == "drop":
                        continue
                    value = None if value is None else changes[one["key"]](value)
                elif key and value == key:
                    if instead is None:
                        continue
                    value = instead
                kept.append({"key": one["key"], "value": value})
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


# JSON ----------------------------------------------------------------------------------------------------------------------


def _parsed(text: bytes) -> Any:
    """A JSON text with its numbers as they are written and its objects with all their members. ValueError for other bytes."""
    numbers: dict[str, Any] = dict.fromkeys(("parse_float", "parse_int", "parse_constant"), Number)
    return json.loads(text, object_pairs_hook=_Object, **numbers)


def _encoded(document: Any, source: bytes) -> bytes:
    """A JSON text in the style of another."""
    style = (", ", ": ") if b'": ' in source else (",", ":")
    try:
        return _dumped(document, *style, encode_basestring).encode()
    except UnicodeEncodeError:  # half of a pair of surrogates
        return _dumped(document, *style, encode_basestring_ascii).encode()


def _dumped(node: Any, comma: str, colon: str, quote: Callable[[str], str]) -> str:
    if isinstance(node, Number):
        return str(node)
    if isinstance(node, str):
        return quote(node)
    if isinstance(node, _Object):
        members = (f"{quote(name)}{colon}{_dumped(one, comma, colon, quote)}" for name, one in node)
        return f"{{{comma.join(members)}}}"
    if isinstance(node, list):
        return f"[{comma.join(_dumped(one, comma, colon, quote) for one in node)}]"
    return {None: "null", True: "true", False: "false"}[node]


def _change(node: Any, steps: tuple[Step, ...], change: Callable[[Any], Any]) -> bool:
    """Change the fields that steps lead to; whether there is one."""
    step, *rest = steps
    found = False
    if isinstance(node, _Object):
        places = [number for number, (name, _) in enumerate(node) if name == step]
    elif isinstance(node, list) and isinstance(step, int):
        places = [*range(len(node))] if step == EVERY else [step] if step < len(node) else []
    else:
        return False
    for place in reversed(places):
        value = node[place][1] if isinstance(node, _Object) else node[place]
        if rest:
            found |= _change(value, tuple(rest), change)
            continue
        found, made = True, change(value)
        if made is DROP and isinstance(node, _Object):
            del node[place]
        else:
            made = None if made is DROP else made  # the items after it keep their places
            node[place] = (node[place][0], made) if isinstance(node, _Object) else made
    return found


# Options -------------------------------------------------------------------------------------------------------------------


def parse_mask(
    given: str | Sequence[str] | Mapping[str, str],
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
    rules = [_rule(field, how) for field, how in _pairs(given)]
    if not rules:
        raise OptionError("--mask: nothing named; FIELD=HOW expected, such as value.card=hash")
    names = [rule.text for rule in rules]
    for rule in rules:
        wholes = [one for one in rules if one.column == rule.column and rule.column != "headers"]
        if names.count(rule.text) > 1 or (len(wholes) > 1 and any(not one.steps for one in wholes)):
            raise OptionError(f"--mask {rule.text}: masked twice")
        if rule.how == "drop" and keep_sizes:
            raise OptionError(f"--mask {rule.text}: drop keeps no size; hash, fixed and digits do")
    secret = _secret(secret_file)
    made = Mask(rules, Masker(secret or b"", keep_sizes=keep_sizes), other)
    if secret is None and made.needs_secret:
        raise OptionError(f"--mask: hash and digits need a secret: in a file (--mask-secret-file), or in ${SECRET}")
    return made


def _pairs(given: str | Sequence[str] | Mapping[str, str]) -> list[tuple[str, str]]:
    if isinstance(given, Mapping):
        return [(str(field).strip(), str(how)) for field, how in given.items()]
    texts = [given] if isinstance(given, str) else list(given)
    parts = [part for text in texts for part in re.split(r",(?=[^=,]+=)", text) if part.strip()]
    for part in parts:
        if "=" not in part:
            raise OptionError(f"--mask {part!r}: FIELD=HOW expected, such as value.card=hash")
    return [(field.strip(), how) for field, _, how in (part.partition("=") for part in parts)]


def _rule(text: str, given: str) -> Rule:
    how, _, more = given.strip().partition(":")
    column, steps = _path(text)
    if column == "timestamp":
        if how != "shift" or steps:
            raise OptionError(f"--mask {text}={given}: times can only be moved: timestamp=shift:-30d")
        return Rule(text, column, (), "shift", shift=parse_span(more))
    if how not in ("drop", "hash", "fixed", "digits") or (more and how != "fixed"):
        raise unknown(f"way to mask {text}", given.strip(), HOWS)
    if column == "headers" and not steps:
        raise OptionError(f"--mask {text}: name a header, such as headers.user")
    return Rule(text, column, steps, how, more.encode())


def _path(text: str) -> tuple[str, tuple[Step, ...]]:
    """`value.items[*].sku` -> the column and the steps from there."""
    column = re.match(r"[^.\[]*", text)[0]  # type: ignore[index]
    if column not in ("key", "value", "headers", "timestamp"):
        raise unknown("field to mask", column, ("key", "value", "headers", "timestamp"))
    if column == "headers":
        return column, (text[len("headers.") :],) if text[len("headers.") :] else ()
    steps: list[Step] = []
    at = len(column)
    while at < len(text):
        found = _STEP.match(text, at)
        if found is None:
            raise OptionError(f"--mask {text}: a field such as value.user or value.items[*].sku expected")
        steps.append(found[1] if found[1] is not None else EVERY if found[2] == "*" else int(found[2]))
        at = found.end()
    return column, tuple(steps)


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
