"""Names that users choose by: literal ones and patterns."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Iterator

from rawlog.core.errors import OptionError, unknown

GLOB = frozenset("*?[")


def is_glob(name: str) -> bool:
    """Whether a name is a pattern that may match several names or none."""
    return not GLOB.isdisjoint(name)


def matches(name: str | None, patterns: Collection[str]) -> bool:
    """Whether a name is one of these, or matches one of these patterns; without patterns any name is."""
    return not patterns or (name is not None and any(fnmatch.fnmatchcase(name, one) for one in patterns))


def missing_topics(asked: Iterable[str], known: Collection[str]) -> Iterator[OptionError | str]:
    """Names and patterns that match no known topic: an error with the nearest name, or a note."""
    for name in asked:
        if any(matches(topic, (name,)) for topic in known):
            continue
        if is_glob(name):
            yield f"--topic {name}: no topic matches"
        elif known:
            yield unknown("topic", name, known)
        else:
            yield OptionError(f"unknown topic {name!r}: there are no topics here")
