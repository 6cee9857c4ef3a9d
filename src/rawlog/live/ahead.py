"""Reads ahead in a thread of its own, so that whoever sends records has them ready when they are due."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from threading import Condition, Thread
from typing import Generic, Self, TypeVar

T = TypeVar("T")
CLOSE_SECONDS = 10.0
"""How long the end waits for an iterator that is in the middle of an item."""


class Ahead(Generic[T]):
    """The items of an iterator, up to `most` of their sizes ahead. An error of the iterator is raised where its item would come.

    Use as a context manager: the thread ends with it. One that waits for something that never comes is left to itself; it never keeps the
    process from ending.
    """

    def __init__(self, items: Iterator[T], size_of: Callable[[T], int], most: int) -> None:
        self._items, self._size_of, self._most = items, size_of, most
        self._ready: deque[T] = deque()
        self._size = 0
        self._error: BaseException | None = None
        self._is_done = self._is_closed = False
        self._changed = Condition()
        self._thread = Thread(target=self._read, name="rawlog-ahead", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(CLOSE_SECONDS)

    def _read(self) -> None:
        try:
            for item in self._items:
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closed or self._size < self._most)
                    if self._is_closed:
                        return
                    self._ready.append(item)
                    self._size += self._size_of(item)
                    self._changed.notify_all()
        except BaseException as error:
            self._error = error
        finally:
            with self._changed:
                self._is_done = True
                self._changed.notify_all()

    def fill(self, timeout: float, is_stopped: Callable[[], bool]) -> None:
        """Wait until as much as possible is ready, but not longer than `timeout` seconds."""
        stop = time.monotonic() + timeout
        with self._changed:
            while self._size < self._most and not self._is_done and not is_stopped() and time.monotonic() < stop:
                self._changed.wait(0.1)

    def take(self, timeout: float) -> T | None:
        """The next item; None if none came in time, or if there are no more (`is_done`). Raises what ended the iterator."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._is_done, timeout)
            if self._ready:
                item = self._ready.popleft()
                self._size -= self._size_of(item)
                self._changed.notify_all()
                return item
            if self._error is not None:
                raise self._error
            return None

    @property
    def is_done(self) -> bool:
        """Whether all items were taken, and the iterator ended well: an error is raised by `take`."""
        return self._is_done and not self._ready and self._error is None


__all__ = ["Ahead"]
