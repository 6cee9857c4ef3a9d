"""The certificate of an erasure: what was asked, removed and kept, with hashes; and the checks of a result against its certificate."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rawlog import __version__
from rawlog.io.storage import Source
from rawlog.model.errors import AccessError, OptionError
from rawlog.model.finding import (
    Finding,
    Mark,
    Rule,
    Severity,
    rule,
)
from rawlog.model.table import RECORDS
from rawlog.model.text import counted, printable
from rawlog.reading.erasure import (
    Erasure,
    Searched,
    look,
    search_file,
    shown,
)

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from rawlog.model.format import File
    from rawlog.reading.select import Transform
    from rawlog.reading.tree import Tree

VERSION = 1
PIECE = 8 << 20
#: So many records of a store are listed in the text for people; the JSON has all.
SHOWN = 100
Place = tuple[str | None, int | None, int]


# What is in it -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileHash:
    """A file: its path below the place that was named, its size, and the SHA-256 of its bytes."""

    path: str
    size: int
    sha256: str

    def as_json(self) -> dict[str, Any]:
        return {"path": self.path, "size": self.size, "sha256": self.sha256}


def file_hash(path: str, named: str) -> FileHash:
    """The hash of a file under a name. AccessError if it cannot be read."""
    made, position = hashlib.sha256(), 0
    with Source(path) as source:
        while piece := source.read(position, PIECE):
            made.update(piece)
            position += len(piece)
    return FileHash(named, position, made.hexdigest())


@dataclass(frozen=True, slots=True)
class StoreEvidence:
    """What was removed from one partition or store, what was kept of it, and where texts that were asked for still are."""

    name: str
    system: str
    removed: tuple[dict[str, Any], ...] = ()
    kept: tuple[dict[str, Any], ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "system": self.system, "removed": list(self.removed), "kept": list(self.kept)}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> StoreEvidence:
        return cls(given["name"], given["system"], tuple(given["removed"]), tuple(given["kept"]))

    @property
    def places(self) -> frozenset[Place]:
        """Where the removed records were."""
        return frozenset((one["topic"], one["partition"], one["offset"]) for one in self.removed)


def certificate(
    erasure: Erasure,
    source: Sequence[str],
    target: str,
    *,
    source_files: Iterable[FileHash],
    result_files: Iterable[FileHash],
    stores: Sequence[StoreEvidence],
    absent: Sequence[str | bytes],
    mentions: Sequence[str],
    elsewhere: Sequence[str] = (),
    left_out: Sequence[str] = (),
) -> dict[str, Any]:
    """The certificate of an erasure, for machines. Its own hash is over everything else in it."""
    made: dict[str, Any] = {
        "certificate": VERSION,
        "rawlog": __version__,
        "made": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "asked": erasure.as_json(),
        "absent": [shown(one) if isinstance(one, bytes) else one for one in absent],
        "records_removed": sum(len(one.removed) for one in stores),
        "records_kept": sum(part["records"] for one in stores for part in one.kept),
        "mentions": list(mentions),
        "elsewhere": list(elsewhere),
        "left_out": list(left_out),
        "source": {"paths": list(source), "files": [one.as_json() for one in source_files]},
        "result": {"path": target, "files": [one.as_json() for one in result_files]},
        "stores": [one.as_json() for one in stores],
    }
    return made | {"sha256": seal(made)}


def seal(content: Mapping[str, Any]) -> str:
    """The hash of a certificate, without its own."""
    plain = {name: value for name, value in content.items() if name != "sha256"}
    text = json.dumps(plain, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def lines(made: Mapping[str, Any]) -> Iterator[str]:
    """The certificate for people."""
    yield "Certificate of erasure"
    yield ""
    yield f"made          {made['made']} by rawlog {made['rawlog']}"
    yield f"source        {', '.join(map(printable, made['source']['paths']))}"
    yield f"result        {printable(made['result']['path'])}"
    for name, value in made["asked"].items():
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        yield f"asked         {name.replace('_', ' ')}: {printable(text)}"
    for one in made["absent"]:
        yield f"absent        {printable(str(one))}: no record had it"
    yield f"removed       {counted(made['records_removed'], 'record')}"
    yield f"kept          {counted(made['records_kept'], 'record')}"
    yield f"this content  SHA-256 {made['sha256']}"
    for one in made.get("elsewhere", ()):
        yield f"not erased    {printable(one)}"
    for one in made.get("left_out", ()):
        yield f"left out      {printable(one)}: not known, so not read and not copied"
    for one in made["mentions"]:
        yield f"still mentioned  {printable(one)}"
    for store in made["stores"]:
        yield from _store_lines(store)
    for title in ("source", "result"):
        yield ""
        yield f"Files of the {title}, with SHA-256"
        for file in made[title]["files"]:
            yield f"  {file['sha256']}  {file['size']:>14,}  {printable(file['path'])}"
    yield ""
    yield "`rawlog verify RESULT --certificate FILE` checks the result against the JSON form of this certificate."


def _store_lines(store: Mapping[str, Any]) -> Iterator[str]:
    if store["removed"]:
        yield ""
        yield f"Removed from {printable(store['name'] or store['system'])}: topic, partition, offset, SHA-256 of key, value and headers"
        for one in store["removed"][:SHOWN]:
            yield f"  {printable(str(one['topic']))} {one['partition']} {one['offset']} {one['sha256']}"
        if len(store["removed"]) > SHOWN:
            yield f"  and {len(store['removed']) - SHOWN:,} more, which the JSON form lists"
    if store["kept"]:
        yield ""
        yield f"Kept in {printable(store['name'] or store['system'])}: topic, partition, records, SHA-256 over them in their order"
        for one in store["kept"]:
            yield f"  {printable(str(one['topic']))} {one['partition']} {one['records']} {one['sha256']}"


def load(path: str) -> dict[str, Any]:
    """A certificate in its JSON form. OptionError for another file, AccessError for one that cannot be read."""
    try:
        found = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise AccessError(f"{path}: {error.strerror or error}") from None
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.get("certificate") != VERSION:
        raise OptionError(f"{path}: not the certificate of an erasure, version {VERSION}, in its JSON form")
    return found


#: What a certificate has: a list means each of its items, None for any value.
_FILE = {"path": str, "size": int, "sha256": str}
_PART = {"topic": None, "partition": None, "sha256": str}
_SHAPE: dict[str, Any] = {
    "rawlog": str,
    "made": str,
    "asked": dict,
    "records_removed": int,
    "records_kept": int,
    "source": {"paths": [str], "files": [_FILE]},
    "result": {"path": str, "files": [_FILE]},
    "stores": [{"name": str, "system": str, "removed": [_PART | {"offset": int}], "kept": [_PART | {"records": int}]}],
}


def decode_is_valid(asked: Mapping[str, Any]) -> bool:
    """Whether a certificate says in words how rows were decoded, or that they were not."""
    return all(asked.get(name) is None or isinstance(asked[name], str) for name in ("decode", "schemas"))


def _invalid(made: Mapping[str, Any], transforms: tuple[Transform, ...]) -> str | None:
    """The first part of a certificate that cannot be used."""
    try:
        if not decode_is_valid(made.get("asked", {})):
            return "asked"
        Erasure.from_json(made.get("asked", {}), transforms).selection.check(RECORDS)
    except (OptionError, TypeError, ValueError, KeyError, AttributeError):
        return "asked"
    return _lacking(made, _SHAPE)


def _lacking(given: Any, shape: Any, name: str = "content") -> str | None:
    """The first part of a certificate that is missing or of another type."""
    if isinstance(shape, dict):
        if not isinstance(given, dict):
            return name
        found = (_lacking(given[one], inner, one) if one in given else one for one, inner in shape.items())
        return next((one for one in found if one is not None), None)
    if isinstance(shape, list):
        if not isinstance(given, list):
            return name
        return next((one for item in given if (one := _lacking(item, shape[0], name)) is not None), None)
    return None if shape is None or isinstance(given, shape) else name


# A result and its certificate --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Examined:
    """What a result has: records that were to be erased, the hashes over the others, and texts that were asked for."""

    remains: list[Place] = field(default_factory=list)
    kept: tuple[dict[str, Any], ...] = ()
    mentions: list[tuple[Searched, str]] = field(default_factory=list)


def examine(files: Sequence[File], store: StoreEvidence, erasure: Erasure) -> Examined:
    """Read the records of a store of the result. DataError at damage."""
    made = Examined()
    found = look(
        files,
        erasure,
        store.system,
        _still(made, erasure, store.system),
        searched=erasure.searched(),
        gone=store.places if erasure.rewrite(store.system).content_only else frozenset(),
    )
    made.kept, made.mentions = tuple(found.kept_json()), found.mentions
    return made


def _still(made: Examined, erasure: Erasure, system: str) -> Callable[[pa.RecordBatch], NDArray[np.bool_]]:
    """Which rows are asked for and are still there; content that was erased is zeros."""
    import numpy as np

    content_only = erasure.rewrite(system).content_only

    def choose(batch: pa.RecordBatch) -> NDArray[np.bool_]:
        found = erasure.mask(batch, system)
        for row in np.flatnonzero(found).tolist() if content_only else ():
            found[row] = bool(batch.column("value")[row].as_py().strip(b"\0"))
        for row in np.flatnonzero(found).tolist():
            topic, partition, offset = (batch.column(name)[row].as_py() for name in ("topic", "partition", "offset"))
            made.remains.append((topic, partition, offset))
        return found

    return choose


@dataclass(slots=True)
class Checkup:
    """What the rules of certificates see."""

    certificate: Mapping[str, Any]
    tree: Tree
    root: str
    transforms: tuple[Transform, ...] = ()
    _examined: dict[str, Examined] = field(default_factory=dict)

    @property
    def erasure(self) -> Erasure:
        return Erasure.from_json(self.certificate["asked"], self.transforms)

    @property
    def stores(self) -> list[StoreEvidence]:
        return [StoreEvidence.from_json(one) for one in self.certificate["stores"]]

    def examined(self, store: StoreEvidence) -> Examined:
        """What a store of the result has, read once for all rules."""
        if store.name not in self._examined:
            base = f"{self.root}/{store.name}" if store.name else self.root
            files = [one for one in self.tree if one.path == base or one.path.startswith(f"{base}/")]
            own = [one for one in files if one.system == store.system and one.problem is None]
            self._examined[store.name] = examine(own, store, self.erasure)
        return self._examined[store.name]

    def path(self, name: str) -> str:
        return f"{self.root}/{name}" if name not in ("", ".") else self.root


@rule("rawlog.certificate.content", Severity.ERROR)
def content(seen: Checkup) -> Iterator[Mark]:
    """The certificate of an erasure was changed: its own hash does not fit its content.

    Nothing that it says can be relied on. Take the certificate from where `rawlog erase` wrote it.
    """
    expected, found = seen.certificate.get("sha256"), seal(seen.certificate)
    if expected != found:
        yield Mark("the certificate was changed", expected=expected, found=found)
    if (lacking := _invalid(seen.certificate, seen.transforms)) is not None:
        yield Mark(f"the certificate has no valid {lacking}")
        return
    for name, count in (
        ("records_removed", sum(len(one.removed) for one in seen.stores)),
        ("records_kept", sum(part["records"] for one in seen.stores for part in one.kept)),
    ):
        if seen.certificate[name] != count:
            yield Mark(
                f"{name} does not fit the stores in the certificate", expected=count, found=seen.certificate[name]
            )


@rule("rawlog.certificate.result", Severity.ERROR)
def result(seen: Checkup) -> Iterator[Mark]:
    """A file of the result of an erasure was changed, removed or added since its certificate was made.

    A broker that started on the result changes its files; check the certificate before that, on a copy. If nobody was to change it, erase
    again from the source.
    """
    known = {one["path"]: one for one in seen.certificate["result"]["files"]}
    present = {file.path: file for file in seen.tree}
    for name, one in known.items():
        path = seen.path(name)
        if path not in present:
            yield Mark("a file of the certificate is missing", path=path)
            continue
        found = file_hash(path, name).sha256
        if found != one["sha256"]:
            yield Mark(
                "the file was changed since the certificate was made", path=path, expected=one["sha256"], found=found
            )
    names = {seen.path(name) for name in known}
    yield from (Mark("a file that the certificate does not have", path=path) for path in present if path not in names)


@rule("rawlog.certificate.remains", Severity.ERROR)
def remains(seen: Checkup) -> Iterator[Mark]:
    """Something that was to be erased is in the result: a record, or a text of `--find` in the bytes of a file.

    The text may be in a file that no erasure changes, such as the name of a topic or a setting of the cluster. Records must not be there:
    erase again from the source.
    """
    for store in seen.stores:
        for topic, partition, offset in seen.examined(store).remains:
            yield Mark(
                f"a record that was to be erased: {topic} partition {partition}",
                offset=offset,
                path=seen.path(store.name),
            )
    yield from _texts(seen, is_strict=True)


@rule("rawlog.certificate.kept", Severity.ERROR)
def kept(seen: Checkup) -> Iterator[Mark]:
    """The records of the result are not those that the certificate says were kept.

    Records were lost, changed or added after the erasure, or by it. Compare the result with the source by `rawlog diff`.
    """
    for store in seen.stores:
        yield from differences(store.kept, seen.examined(store).kept, seen.path(store.name))


def differences(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], path: str) -> Iterator[Mark]:
    """Partitions whose hashes over kept records differ."""
    old, new = ({(one["topic"], one["partition"]): one for one in many} for many in (before, after))
    for place in sorted({*old, *new}, key=str):
        if old.get(place) != new.get(place):
            counts = [str(one["records"]) if one else "none" for one in (old.get(place), new.get(place))]
            message = f"{place[0]} partition {place[1]}: other records than were kept"
            yield Mark(message, path=path, expected=f"{counts[0]} records", found=f"{counts[1]} records")


@rule("rawlog.certificate.elsewhere", Severity.WARNING)
def elsewhere(seen: Checkup) -> Iterator[Mark]:
    """A part of a log was not among the sources of an erasure, although their files say that it exists: segments of tiered storage.

    What was to be erased may still be there, and a broker serves it. Erase again, with the remote storage among the sources:
    `rawlog erase kafka-logs/ s3://bucket/prefix DST`.
    """
    yield from (Mark(str(one)) for one in seen.certificate.get("elsewhere") or ())


@rule("rawlog.certificate.mention", Severity.INFO)
def mention(seen: Checkup) -> Iterator[Mark]:
    """The text of an erased key, or one that `--where` compares with, is still in the result, outside of the records that were erased.

    It may be a coincidence, or a mention of the same person in a record of another key. `rawlog find TEXT RESULT` shows the records;
    `rawlog erase --find TEXT` erases them.
    """
    yield from _texts(seen, is_strict=False)


def _texts(seen: Checkup, *, is_strict: bool) -> Iterator[Mark]:
    searched = [one for one in seen.erasure.searched() if one.is_strict == is_strict]
    for store in seen.stores:
        for one, where in seen.examined(store).mentions:
            if one.is_strict == is_strict:
                yield Mark(f"{_quoted(one)} in a record: {where}", path=seen.path(store.name))
    for file in seen.tree:
        if file.problem is None:
            for one, position in search_file(file.path, searched):
                yield Mark(f"{_quoted(one)} in the bytes of the file", position=position, path=file.path)


def _quoted(one: Searched) -> str:
    return repr(one.text.decode("utf-8", "backslashreplace"))


RULES: tuple[Rule[Checkup], ...] = (content, result, remains, kept, elsewhere, mention)


def check(made: Mapping[str, Any], tree: Tree, root: str, transforms: tuple[Transform, ...] = ()) -> list[Finding]:
    """What is wrong with a result, by its certificate. `transforms` decode rows if the erasure did so. DataError at damage in it."""
    seen = Checkup(made, tree, root.rstrip("/"), transforms)
    found = []
    for one in RULES if _invalid(made, transforms) is None else (content,):
        for mark in one.check(seen):
            found.append(as_finding(one, mark))
    return found


def as_finding(one: Rule[Any], mark: Mark) -> Finding:
    """What a rule of certificates found."""
    texts = [None if value is None else str(value) for value in (mark.expected, mark.found)]
    return Finding(one.code, one.severity, mark.path, None, mark.position, mark.size, mark.offset, mark.message, *texts)


def unread(error: Exception) -> Finding:
    """That a result could not be compared with its certificate, because it is damaged."""
    return as_finding(kept, Mark(f"the result cannot be read: {str(error).splitlines()[0]}"))
