"""Everything together: which wounds each subject gets, and the outcomes of one wound."""

from __future__ import annotations

import atexit
import os
import tempfile
from functools import cache
from pathlib import Path

from hypothesis import settings

from tests.wounds import ambry, kafka, kraft, replay, rocketmq
from tests.wounds.oracle import Judge, Verdict
from tests.wounds.truth import Sound, Subject
from tests.wounds.wounds import WOUNDS, Copy, Unfit, Wound

SUBJECTS: dict[str, Subject] = {
    subject.name: subject
    for module in (kafka, kraft, rocketmq, ambry, replay)
    for name in ("SUBJECTS", "LEGACY", "WHOLE", "BROKER")
    for subject in getattr(module, name, ())
}


#: `make deep` runs more seeds, and every case.
IS_DEEP = settings.default is not None and settings.default.max_examples > 1000
#: Subjects that are much like others: they get one wound of each kind.
LIKE_OTHERS = frozenset(
    {"kafka-transactions", "kafka-compacted", "legacy-v0", "legacy-codecs", "legacy-compacted", "kraft-log"}
)


def cases(*subjects: str) -> list[tuple[str, str]]:
    """Subject and wound, of some subjects or all."""
    return [
        (name, wound.name)
        for name in subjects or SUBJECTS
        for wound in WOUNDS.values()
        if wound.fits(SUBJECTS[name]) and not (wound.is_variant and name in LIKE_OTHERS)
    ]


def chosen(*subjects: str) -> list[tuple[str, str]]:
    """The cases that a run of the tests takes: one wound of each kind, and half of them on subjects that are much like others. All of them
    with the deep profile (`make deep`, or `HYPOTHESIS_PROFILE=deep pytest tests/wounds -k one_wound`).
    """
    return [(name, wound) for name, wound in cases(*subjects) if IS_DEEP or _is_quick(name, wound)]


def _is_quick(subject: str, wound: str) -> bool:
    is_share = subject not in LIKE_OTHERS or wound == "none" or sum(f"{subject}{wound}".encode()) % 2 == 0
    return is_share and not WOUNDS[wound].is_variant


#: Directories in memory, where there are such: every result is synced to its disk.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def workplace(order: str = "a") -> tempfile.TemporaryDirectory[str]:
    """A directory for wounded copies. Sound ones are after them in the order of names: `rescue` takes the first of replicas that it
    holds to be alike.
    """
    return tempfile.TemporaryDirectory(prefix=f"rawlog-wounds-{order}-", dir=MEMORY)


@cache
def judge(subject: str) -> Judge:
    """The judge of a subject, made once for a process."""
    place = workplace("b")
    atexit.register(place.cleanup)
    return Judge(Sound(SUBJECTS[subject], Path(place.name)), Path(place.name))


def outcomes(subject: str, wound: Wound, seed: int = 0, with_slow: bool | None = None) -> list[Verdict] | None:
    """The verdict on every verb for one wound; None if the subject has no place for it."""
    with workplace() as folder:
        try:
            copy = Copy(judge(subject).sound, Path(folder) / "wounded" / "store", seed)
            wound.act(copy)
        except Unfit:
            return None
        slow = shares(subject, wound.name) if with_slow is None else with_slow
        return judge(subject).judge(copy, Path(folder), slow)


def shares(subject: str, wound: str) -> bool:
    """Whether slow verbs run on this wound: on about every eighth."""
    return sum(f"{subject}{wound}".encode()) % 8 == 0 or wound.startswith("none")
