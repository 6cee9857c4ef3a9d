"""Layout: the fixed part of a binary structure, declared one field per line.

Everything that needs a position, a size or a type of such a structure asks its layout: kernels, readers,
`explain` and the byte tables in the docs. Declaring one needs no NumPy, so listing formats stays quick.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_TYPE = re.compile(r"^(?:([<>|]?)([iu])(1|2|4|8)|S(\d+))$")


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its name, its NumPy type (`>i4`, `i1`, `S16`), and what a reader must know of it."""

    name: str
    type: str
    note: str = ""

    @property
    def size(self) -> int:
        match = _TYPE.match(self.type)
        assert match, f"field {self.name}: type {self.type!r}"
        return int(match.group(3) or match.group(4))


class Layout:
    """A structure of fixed fields that follow one another without padding."""

    def __init__(self, name: str, *fields: Field) -> None:
        self.name = name
        self.fields = fields
        self._at: dict[str, int] = {}
        position = 0
        for field in fields:
            assert field.name not in self._at, f"{name}: field {field.name} twice"
            self._at[field.name] = position
            position += field.size
        self.size = position

    def at(self, name: str) -> int:
        """The position of a field from the start of the structure."""
        return self._at[name]

    def after(self, name: str) -> int:
        """The position just after a field."""
        return self._at[name] + self.field(name).size

    def field(self, name: str) -> Field:
        return next(field for field in self.fields if field.name == name)

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        import numpy as np

        return np.dtype([(field.name, field.type) for field in self.fields])

    def take(self, data: NDArray[np.uint8], starts: NDArray[np.int64]) -> NDArray[Any]:
        """Structures at scattered positions, each of which the caller has checked to lie inside `data`."""
        import numpy as np

        index = np.asarray(starts, np.int64)[:, None] + np.arange(self.size, dtype=np.int64)
        return np.ascontiguousarray(data[index]).view(self.dtype).reshape(-1)

    def view(self, data: NDArray[np.uint8]) -> NDArray[Any]:
        """The whole structures at the front of `data`, for files of fixed stride; no copy where alignment allows."""
        count = data.size // self.size
        return data[: count * self.size].view(self.dtype)

    def __repr__(self) -> str:
        return f"Layout({self.name!r}, {self.size} bytes)"
