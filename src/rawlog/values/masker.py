"""Masker: what a mask makes of a single value of any kind: a text, a number, a value in a JSON text.

Equal texts give equal masks in every field, topic and system, so that masked rows can still be joined. Hashes and texts of the same form
depend on a secret. Kernels make the masks of many texts; without a compiler Python does.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from rawlog import kernels
from rawlog.model.table import Step
from rawlog.reading.fields import Number
from rawlog.values.documents import DROP, Object, compact

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Hexadecimal digits of a hash whose size is not that of its source.
HASH_SIZE = 32
ROUNDS = 10
#: Bytes that kernels need next to the longest text.
_SPARE = 64
#: So many masks are remembered, so that equal texts cost nothing.
MOST_REMEMBERED = 1 << 16


class Masker:
    """The masks of texts. Those that depend on the secret are the same wherever the secret is."""

    def __init__(self, secret: bytes, *, keep_sizes: bool = False) -> None:
        self._secret, self.keep_sizes = secret, keep_sizes
        self._masks: dict[tuple[str, bytes], bytes] = {}
        self._kept: _Kernels | None = None

    def __repr__(self) -> str:
        return "Masker()"  # a secret is never shown

    @property
    def _many(self) -> _Kernels | None:
        """What masks many texts, where kernels are compiled: here, which may not be where the masker was made."""
        if kernels.MODE == "plain":
            return None
        if self._kept is None:
            self._kept = _Kernels(self._secret)
        return self._kept

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
            return [self.hash(text) for text in texts]
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
        mask = self._masks.get((how, text))
        if mask is None:
            mask = make()
            if len(self._masks) < MOST_REMEMBERED:
                self._masks[how, text] = mask
        return mask

    def _stream(self, text: bytes, size: int) -> bytes:
        """So many bytes that only the secret tells."""
        return hashlib.shake_256(hmac.digest(self._secret, text, "sha256")).digest(size)

    def _permuted_all(self, texts: Sequence[bytes], *, is_number: bool) -> list[bytes]:
        """Other texts of the same forms. The kernel knows ASCII only."""
        slow, many = self._other_number_text if is_number else self._in_form, self._many
        if many is None:
            return [slow(text) for text in texts]
        quick = iter(many.permuted([text for text in texts if text.isascii()], is_number=is_number))
        return [next(quick) if text.isascii() else slow(text) for text in texts]

    def _other_number_text(self, text: bytes) -> bytes:
        return self._other_number(text.decode()).encode()

    def _in_form(self, text: bytes) -> bytes:
        try:
            code, decoded = "utf-8", text.decode()
        except UnicodeDecodeError:
            code, decoded = "latin-1", text.decode("latin-1")
        return self._permuted(decoded, [_alphabet(letter) for letter in decoded]).encode(code)

    def _other_number(self, text: str) -> str:
        mantissa, mark, exponent = re.match(r"([^eE]*)([eE]?)(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
        alphabets = ["0123456789" if letter.isdecimal() else "" for letter in mantissa]
        first = mantissa.startswith("-")
        if mantissa[first : first + 2].isdecimal() and mantissa[first] != "0" and len(mantissa) > first + 1:
            alphabets[first] = "123456789"  # JSON has no number that begins with 0
        return self._permuted(mantissa, alphabets) + mark + exponent

    def _permuted(self, text: str, alphabets: Sequence[str]) -> str:
        """A permutation of all texts of this form: a Feistel network over the places of its digits and letters, each with its own base."""
        places = [number for number, alphabet in enumerate(alphabets) if alphabet]
        bases = [len(alphabets[place]) for place in places]
        values = [_index(alphabets[place], text[place]) for place in places]
        form = "".join(alphabet[:1] or letter for letter, alphabet in zip(text, alphabets, strict=True)).encode(
            "utf-8", "surrogatepass"
        )
        half = (len(places) + 1) // 2
        for number in range(ROUNDS):
            halves = slice(0, half), slice(half, None)
            changed, other = halves if number % 2 == 0 else halves[::-1]
            message = b"form%d:%s:%s" % (number, form, bytes(values[other]))
            stream = self._stream(message, 4 * len(values[changed]))
            added = (int.from_bytes(stream[at : at + 4], "big") for at in range(0, len(stream), 4))
            values[changed] = [
                (value + more) % base for value, more, base in zip(values[changed], added, bases[changed], strict=True)
            ]
        letters = list(text)
        for place, value in zip(places, values, strict=True):
            letters[place] = alphabets[place][value]
        return "".join(letters)


class _Kernels:
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


def _alphabet(letter: str) -> str:
    if letter.isdigit():
        return "0123456789"
    if not letter.isalpha():
        return ""
    return "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if letter.isupper() else "abcdefghijklmnopqrstuvwxyz"


def _index(alphabet: str, letter: str) -> int:
    index = alphabet.find(letter)
    return index if index >= 0 else ord(letter) % len(alphabet)


# Rules ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MaskRule:
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
        return lambda texts: [of_bytes(text) for text in texts]

    def json_mask(self, masker: Masker) -> Callable[[Any], Any]:
        """What a value in a JSON text is replaced by. Null stays null, as there is nothing to hide."""
        of_bytes = self.bytes_mask(masker)

        def change(value: Any) -> Any:
            if value is None:
                return None
            if self.how == "drop":
                return DROP
            if self.how == "digits" and isinstance(value, Object):
                return Object((name, change(member)) for name, member in value)
            if self.how == "digits" and isinstance(value, list):
                return [change(item) for item in value]
            if isinstance(value, Number) and (self.how == "digits" or (self.how == "hash" and masker.keep_sizes)):
                return Number(masker.number(value.encode()).decode())
            if self.how == "digits" and not isinstance(value, str):
                return value
            text = value if isinstance(value, str) else compact(value)
            return (of_bytes(text.encode("utf-8", "surrogatepass")) or b"").decode("utf-8", "replace")

        return change


FLOAT_MAX = 3.4028234663852886e38


class Misfit(ValueError):
    """A field that cannot have what it was to become: its type, and what it can have; the rule, or a path, that leads to it."""

    def __init__(self, type: str, hint: str, path: Sequence[str | int] = ()) -> None:
        super().__init__(type, hint)
        self.type, self.hint, self.path = type, hint, tuple(path)
        self.rule: MaskRule | None = None


class UnknownType(Misfit):
    """A value of a type that the schema does not have: it is not known which fields it holds."""


class Edit:
    """The change of a field: a rule, for values of all types."""

    def __init__(
        self,
        rule: MaskRule,
        of_json: Callable[[Any], Any],
        of_bytes: Callable[[bytes], bytes | None],
        of_all: Callable[[Sequence[bytes]], Sequence[bytes | None]] | None = None,
        of_numbers: Callable[[Sequence[bytes]], Sequence[bytes]] | None = None,
    ) -> None:
        """`of_all` changes many bytes at once, and `of_numbers` many numbers; None if that is known one by one only."""
        self.rule, self.of_json, self.of_bytes, self.of_numbers = rule, of_json, of_bytes, of_numbers
        self.of_all = of_all or (lambda values: [of_bytes(value) for value in values])

    @classmethod
    def of(cls, rule: MaskRule, masker: Masker) -> Edit:
        """The edit that a rule describes."""
        of_numbers = masker.numbers_all if rule.how == "digits" else None
        return cls(rule, rule.json_mask(masker), rule.bytes_mask(masker), rule.all_mask(masker), of_numbers)

    @property
    def steps(self) -> tuple[Step, ...]:
        return self.rule.steps

    @property
    def is_drop(self) -> bool:
        """Whether fields are left out."""
        return self.rule.how == "drop"

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Name the rule in a Misfit."""
        try:
            yield
        except Misfit as error:
            error.rule = self.rule
            raise

    def text(self, value: str) -> str:
        return str(self.of_json(value))

    def number(self, value: str, type: str) -> Decimal:
        """Another number. Misfit for anything else: a hash is a number only if sizes are kept."""
        masked = self.of_json(Number(value))
        if isinstance(masked, Number) or self.rule.how == "fixed":
            try:
                number = Decimal(masked)
                if number.is_finite():
                    return number
            except InvalidOperation:
                pass
        raise Misfit(type, "digits gives a number; fixed:0 too")

    def whole(self, value: int, type: str, low: int, high: int) -> int:
        """Another whole number of a range. A number with other digits may be too large: then its own digits are replaced, and so on. As the
        first number was in the range, one of them is, and different numbers stay different.
        """
        number = self.number(str(value), type)
        while self.rule.how != "fixed" and not low <= number <= high:
            number = self.number(str(number), type)
        if number != number.to_integral_value() or not low <= number <= high:
            raise Misfit(type, f"{number} is not one")
        return int(number)

    def wholes(self, values: Sequence[int], low: int, high: int) -> list[int]:
        """The same for many of the range, by `of_numbers`."""
        assert self.of_numbers is not None
        numbers = list(values)
        left = list(range(len(numbers)))
        while left:
            for at, text in zip(left, self.of_numbers([b"%d" % numbers[at] for at in left]), strict=True):
                numbers[at] = int(text)
            left = [at for at in left if not low <= numbers[at] <= high]
        return numbers

    def floating(self, value: float, type: str, is_single: bool) -> float:
        if value - value != 0:  # NaN and infinity have no digits
            return 0.0 if self.rule.how == "fixed" else value
        number = float(self.number(json.dumps(value), type))
        if abs(number) > (FLOAT_MAX if is_single else 1.7976931348623157e308):
            raise Misfit(type, f"{number} is not one")
        return number

    def truth(self, value: bool, type: str) -> bool:
        masked = self.of_json(value)
        if isinstance(masked, bool):
            return masked
        if self.rule.how == "fixed" and masked in ("true", "false"):
            return bool(masked == "true")
        raise Misfit(type, "fixed:true and fixed:false are ones")

    def symbol(self, value: str, type: str, symbols: Sequence[str]) -> str:
        masked = self.text(value)
        if masked not in symbols:
            raise Misfit(type, f"fixed:{symbols[0]} is one" if symbols else "it has no symbols")
        return masked
