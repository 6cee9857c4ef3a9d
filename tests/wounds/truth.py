"""What a store holds: records at their addresses, the frames that hold them, and subjects, small stores that are wounded in copies."""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple


class Record(NamedTuple):
    """A record: where it belongs (a partition, queue or blob; an offset or version) and a digest of its content."""

    place: str
    number: int
    digest: str


def digest(*parts: object) -> str:
    """A short digest of time, key and value; null differs from empty."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Frame:
    """A batch, message or entry: its bytes in a file, the addresses it covers (both ends), and its records, control records left out."""

    file: str
    start: int
    stop: int
    place: str
    first: int
    last: int
    records: tuple[Record, ...]

    @property
    def size(self) -> int:
        return self.stop - self.start


class Family:
    """How the files of one family are read: by the reference decoder, and from rows of the table `records`."""

    name: str
    #: Globs of files with frames, and of files that are derived from them.
    data: tuple[str, ...]
    derived: tuple[str, ...]

    def frames(self, root: Path, file: Path) -> list[Frame]:
        """The frames of a file up to its first damage."""
        raise NotImplementedError

    def row(self, row: Mapping[str, Any]) -> Record:
        """The record of a row; binary columns are bytes, `timestamp` is milliseconds or None."""
        raise NotImplementedError

    def files(self, root: Path, globs: Iterable[str]) -> list[Path]:
        """Regular files below a store by globs, in the order of their names."""
        return sorted({path for glob in globs for path in root.glob(glob) if path.is_file()})

    def records(self, root: Path) -> Counter[Record]:
        """Every record below a directory."""
        frames = (frame for file in self.files(root, self.data) for frame in self.frames(root, file))
        return Counter(record for frame in frames for record in frame.records)


@dataclass(frozen=True)
class Subject:
    """A small store. `build` fills an empty directory; `facts` say what evidence it has (`wounds` asks them)."""

    name: str
    family: Family
    build: Callable[[Path], None]
    facts: frozenset[str] = frozenset()
    #: The key that `erase` removes, and verbs that cannot work on such a store.
    key: str = ""
    not_for: frozenset[str] = frozenset()
    #: The only verbs that run on it, whatever the family; empty: all that fit the family.
    only: frozenset[str] = frozenset()
    #: What rows of its table `records` leave out of the truth: nothing, as a rule.
    options: Mapping[str, str] = field(default_factory=dict)

    def has(self, fact: str) -> bool:
        return fact in self.facts


class Sound:
    """A subject on disk, with its truth."""

    def __init__(self, subject: Subject, folder: Path) -> None:
        self.subject, self.root = subject, folder / subject.name
        self.root.mkdir(parents=True)
        subject.build(self.root)

    @cached_property
    def frames(self) -> list[Frame]:
        family = self.subject.family
        return [frame for file in family.files(self.root, family.data) for frame in family.frames(self.root, file)]

    @cached_property
    def records(self) -> Counter[Record]:
        return Counter(record for frame in self.frames for record in frame.records)

    def copy(self, target: Path) -> None:
        shutil.copytree(self.root, target, symlinks=True)
