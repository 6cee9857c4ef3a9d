"""The files of a store on their way into another, and what a job that wrote one has to tell."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawlog.core.errors import OptionError
from rawlog.core.format import File, Unit, units_of
from rawlog.core.report import Account
from rawlog.formats.rocketmq.paths import COMMIT_LOG_NAME, above, below_root
from rawlog.io.storage import Source

PIECE = 4 << 20


@dataclass(slots=True)
class Report(Account):
    """What was written, and every loss and change by name."""

    target: str = ""
    messages: int = 0
    queues: int = 0
    units: int = 0
    keys: int = 0
    files: int = 0
    bytes_lost: int = 0
    messages_lost: int = 0
    queues_left_out: int = 0
    settings_lost: int = 0
    damaged_files: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether nothing was lost on the way."""
        lost = self.bytes_lost or self.messages_lost or self.queues_left_out or self.settings_lost
        return not (lost or self.damaged_files)

    def pass_over(self, path: str, position: int, why: str) -> None:
        """Note damage in a commit log: the messages after it are in no queue and not in the key index."""
        self.damaged_files += 1
        self.notes.append(
            f"{path}: byte {position:,}: {why}; messages after it in this file are not in the queues; `rawlog repair` keeps them"
        )

    def leave_out(self, queue: tuple[str, int], units: int, why: str) -> None:
        """Note a queue that has no directory, because its topic's name cannot be that of one."""
        self.queues_left_out += 1
        self.notes.append(
            f"topic {queue[0]!r} queue {queue[1]}: left out with {units:,} units: no directory can have this name: {why}"
        )


class Nowhere:
    """Stands for a directory, and for the files in it, of a run that writes nothing: it takes all and keeps none of it."""

    def __truediv__(self, name: str) -> Nowhere:
        return self

    @property
    def parent(self) -> Nowhere:
        return self

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """There is nothing to make."""

    def open(self, mode: str) -> Any:
        """What is written goes to the system's own nowhere."""
        return open(os.devnull, mode)


def write_sized(path: Path | Nowhere, pieces: list[NDArray[np.uint8] | bytes], size: int) -> None:
    """A file of `size` bytes that begins with these and goes on with zeros, which take no room on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for piece in pieces:
            file.write(bytes(piece) if isinstance(piece, bytes) else piece.tobytes())
        if isinstance(path, Path):
            file.truncate(size)


def copy_file(file: File, path: Path | Nowhere) -> None:
    """The same bytes again; runs of zeros stay holes."""
    if isinstance(path, Nowhere):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with Source(file.path) as source, path.open("wb") as out:
        position = 0
        while position < source.size:
            piece = source.read(position, PIECE)
            if not piece:
                break
            if piece.count(0) == len(piece):
                out.seek(len(piece), os.SEEK_CUR)
            else:
                out.write(piece)
            position += len(piece)
        out.truncate(source.size)


def cut(files: Sequence[File], options: Mapping[str, str], at_once: int) -> list[Unit]:
    """A unit for each store. One whose commit log lies in several directories is one all the same: only one of them has anything else.
    OptionError for what cannot be told apart.
    """
    groups: dict[str, list[File]] = {}
    for file in files:
        if file.place.group is not None:
            groups.setdefault(file.place.group, []).append(file)
    roots = [folder for folder, group in groups.items() if any(one.format != COMMIT_LOG_NAME for one in group)]
    if len(groups) > 1 and len(roots) > 1:
        return units_of(groups, options)
    names = [below_root(file) for file in files if file.format == COMMIT_LOG_NAME and file.problem is None]
    if len(set(names)) < len(names):
        raise OptionError("commit logs of several stores are here, with nothing to tell them apart; name one of them")
    folder = (roots or list(groups) or [above(files[0].path, 1)])[0]
    return units_of({folder: list(files)}, options)
