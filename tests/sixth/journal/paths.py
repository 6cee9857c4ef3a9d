"""How files of journals are recognised: by name and place, else by their first bytes. Imports neither NumPy nor Arrow."""

from __future__ import annotations

import re
from collections.abc import Callable

from rawlog.model.errors import CorruptError, TruncatedError, UnsupportedError
from rawlog.model.format import Origin, Place
from tests.sixth.journal.layouts import FILE_HEADER, FILE_MAGIC, VERSION


def place_of(ending: str) -> Callable[[str], Place | None]:
    """What a path says of a file with this ending: the directory is the journal, the name is the first number."""
    pattern = re.compile(rf"(\d{{20}})\.{ending}")

    def match(path: str) -> Place | None:
        folder, _, name = path.rpartition("/")
        found = pattern.fullmatch(name)
        if found is None or int(found[1]) >= 1 << 63:
            return None
        topic = folder.rpartition("/")[2] or None
        return Place(topic, None if topic is None else 0, int(found[1]), folder or ".")

    return match


def sniff(head: bytes, size: int) -> bool:
    """Whether a file that begins with `head` is a segment, whatever its name: the magic and a plausible version."""
    version = head[FILE_HEADER.at("version") : FILE_HEADER.after("version")]
    return head.startswith(FILE_MAGIC) and size >= FILE_HEADER.size and 0 < int.from_bytes(version, "big") < 100


def begin(head: bytes, size: int) -> Origin:
    """Where the entries begin, and the version of the file. DataError if the header is cut or damaged."""
    if size == 0:
        return Origin(0, VERSION)  # created, nothing written yet: not damage
    place = {"position": 0, "layout": FILE_HEADER.name}
    if size < FILE_HEADER.size:
        what = f"file header of {size} bytes, {FILE_HEADER.size} expected"
        raise TruncatedError(what, **place, expected=FILE_HEADER.size, found=size)
    magic = head[: FILE_HEADER.after("magic")]
    if magic != FILE_MAGIC:
        what = f"magic is {magic.hex()}, {FILE_MAGIC.hex()} expected"
        raise CorruptError(what, **place, field="magic", expected=FILE_MAGIC.hex(), found=magic.hex())
    version = int.from_bytes(head[FILE_HEADER.at("version") : FILE_HEADER.after("version")], "big", signed=True)
    if version != VERSION:
        what = f"version is {version}, {VERSION} expected"
        raise UnsupportedError(what, **place, field="version", expected=VERSION, found=version)
    return Origin(FILE_HEADER.size, version)
