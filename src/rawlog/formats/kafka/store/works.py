"""The verbs that write partition directories anew: a unit is a partition, and a log directory of them has files of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rawlog.core.errors import OptionError, UnknownFormatError
from rawlog.core.format import File, Unit
from rawlog.core.report import Account, Several
from rawlog.formats.kafka.checkpoints import CLEANER, LOG_START, offsets_in, write
from rawlog.formats.kafka.heads import heads
from rawlog.formats.kafka.log import scan
from rawlog.formats.kafka.paths import METADATA_TOPIC, OFFSET_CHECKPOINTS, split
from rawlog.formats.kafka.store.compact import FLAGS, SMALLEST_MEMORY, Settings, compact_partition
from rawlog.formats.kafka.store.compact import Report as Compacted
from rawlog.formats.kafka.store.identity import META
from rawlog.formats.kafka.store.rebuild import rebuild_partition
from rawlog.formats.kafka.store.repair import repair_partition
from rawlog.formats.kafka.texts import check_meta
from rawlog.io.storage import Source, exists
from rawlog.kernels import byte_view

#: What a log directory says of itself, beside what it says of its partitions.
BOOTSTRAP = "bootstrap.checkpoint"
SURROUNDINGS = (META, BOOTSTRAP)


@dataclass(slots=True)
class Partitions(Several):
    """What came of every partition, by the name of its directory; `notes` tell what of the directory around them was lost."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing was lost."""
        return not self.notes and all(one.is_whole for one in self.parts.values())

    def as_json(self) -> dict[str, Any]:
        """Each partition's own account."""
        told = {name: one.as_json() for name, one in self.parts.items()}
        return {"partitions": told, "notes": self.notes, "is_whole": self.is_whole}

    def lines(self) -> list[str]:
        """Each partition's own account, then the notes."""
        return [*Several.lines(self), *self.notes]


# One partition -----------------------------------------------------------------------------------------------------


def rebuild(files: Sequence[File], target: str, options: Mapping[str, str]) -> Account:
    """A partition with its derived files anew."""
    return rebuild_partition(files, target, options)


def repair(files: Sequence[File], target: str, options: Mapping[str, str]) -> Account:
    """A mended partition; `policy`, `quarantine` and `dry_run` are the options of its own."""
    rest = dict(options)
    policy, aside, dry = rest.pop("policy", "salvage"), rest.pop("quarantine", None), _flag(rest, "dry_run")
    return repair_partition(files, target, rest, policy=policy, quarantine=aside, dry_run=dry)


def compact(files: Sequence[File], target: str, options: Mapping[str, str]) -> Account:
    """A compacted partition."""
    return compact_partition(files, target, options)


def _flag(options: dict[str, str], name: str) -> bool:
    text = options.pop(name, "false")
    if text.lower() not in FLAGS:
        raise OptionError(f"{name} {text!r}: true or false expected")
    return FLAGS[text.lower()]


# All of them -------------------------------------------------------------------------------------------------------


def cut(files: Sequence[File], options: Mapping[str, str], at_once: int) -> list[Unit]:
    """A unit for each partition directory that a broker would load. UnknownFormatError if there is none."""
    groups: dict[str, list[File]] = {}
    for file in files:
        if file.place.group is not None:
            groups.setdefault(file.place.group, []).append(file)
    units = [
        Unit(split(folder)[1], tuple(group), options)
        for folder, group in sorted(groups.items())
        if any(file.format == "kafka.log" and file.place.state is None for file in group)
    ]
    return _distinct(units)


def cut_compaction(files: Sequence[File], options: Mapping[str, str], at_once: int) -> list[Unit]:
    """A unit for each partition of the topics that `topic` names: a glob, or several with commas between. Those done at once share
    the memory, and all are judged by the same time.
    """
    rest = dict(options)
    globs = [one for one in rest.pop("topic", "*").split(",") if one]
    settings = Settings.told(rest)
    chosen = [file for file in files if _is_compacted(file.place.topic, globs)]
    count = len(cut(chosen, rest, at_once))
    rest["memory"] = str(max(SMALLEST_MEMORY, settings.memory // max(1, min(at_once, count))))
    rest["now"] = str(settings.now)
    return cut(chosen, rest, at_once)


def _is_compacted(topic: str | None, globs: Iterable[str]) -> bool:
    return topic != METADATA_TOPIC and any(glob == "*" or fnmatchcase(topic or "", glob) for glob in globs)


def _distinct(units: list[Unit]) -> list[Unit]:
    if not units:
        raise UnknownFormatError("no partition directory is here")
    if len({unit.name for unit in units}) < len(units):
        raise OptionError("partitions of the same name are here; name the log directory of one of them")
    return units


def join(units: Sequence[Unit], accounts: Sequence[Account], folder: Path | None) -> Account:
    """What came of all partitions; in the directory around them, what it says of itself and of them, as far as it is still true.

    The mark of a clean stop is left out: a broker then looks at everything once. A log start behind the end would delete the log.
    """
    done: dict[str, Any] = {unit.name: account for unit, account in zip(units, accounts, strict=True)}
    sources = {split(unit.files[0].place.group or "")[0] for unit in units}
    notes: list[str] = []
    if folder is not None and len(sources) == 1:
        [source] = sources
        _keep_checkpoints(source, done, folder)
        notes = keep_surroundings(source, folder)
    return Partitions(parts=done, notes=notes)


def _keep_checkpoints(source: str, done: Mapping[str, Any], folder: Path) -> None:
    for name in OFFSET_CHECKPOINTS:
        offsets = {}
        for (topic, partition), offset in offsets_in(source, name).items():
            account = done.get(f"{topic}-{partition}")
            if account is not None and (name != LOG_START or offset <= account.end_offset):
                offsets[topic, partition] = min(offset, account.end_offset)
        if name == CLEANER:
            for directory, account in done.items():
                topic, _, number = directory.rpartition("-")
                if isinstance(account, Compacted) and number.isdigit():
                    offsets[topic, int(number)] = account.first_dirty
        if offsets:
            (folder / name).write_bytes(write(offsets))


def keep_surroundings(source: str, folder: Path) -> list[str]:
    """Carry over what a log directory says of itself: whose it is, and what a new cluster would start from; a note on each that is lost.

    No broker starts on damaged bootstrap records, and one that has a metadata log does without them; nor on a damaged identity: without
    one it makes a new one, or asks for the directory to be formatted with the cluster's id, and keeps what is in it.
    """
    notes = []
    for name in SURROUNDINGS:
        if not exists(f"{source}/{name}") or (folder / name).exists():
            continue
        with Source(f"{source}/{name}") as opened:
            data = opened.read(0, opened.size)
        if not (_is_sound(data) if name == BOOTSTRAP else _is_identity(data)):
            notes.append(f"{name}: damaged, left out")
        else:
            (folder / name).write_bytes(data)
    return notes


def _is_identity(data: bytes) -> bool:
    """Whether bytes say whose a log directory is."""
    try:
        check_meta(data)
    except (ValueError, KeyError):
        return False
    return True


def _is_sound(data: bytes) -> bool:
    """Whether bytes are batches with the right checksums, to the end."""
    frames = scan(byte_view(data), 0)
    return bool(len(frames)) and frames.reached == len(data) and bool(heads(frames).sound.all())
