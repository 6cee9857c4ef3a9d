"""What several consumers of one object need and only one of them should compute: checksums of a window, the state of a store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, TypeVar

T = TypeVar("T")


class Sharing:
    """An object whose class has a dict `_shared`, in which results are kept."""

    __slots__ = ()
    _shared: dict[object, Any]

    def share(self, make: Callable[[Self], T]) -> T:
        """What `make` gives for this object, computed once for everybody who asks."""
        if make not in self._shared:
            self._shared[make] = make(self)
        return self._shared[make]  # type: ignore[no-any-return]

    def shared(self, make: Callable[[Self], T]) -> T | None:
        """What `make` gave for this object, if somebody asked already."""
        return self._shared.get(make)
