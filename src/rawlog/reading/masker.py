"""Masker: the masks of texts, keyed hashes and other texts of the same form. Kernels make them; without a compiler Python does."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from rawlog import kernels

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
        from rawlog.kernels.blocks import SCRATCH
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
