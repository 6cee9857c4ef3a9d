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
    SearchText,
    bytes_to_json,
    look,
    search_file,
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
    digest, position = hashlib.sha256(), 0
    with Source(path) as source:
        while piece := source.read(position, PIECE):
            digest.update(piece)
            position += len(piece)
    return FileHash(named, position, digest.hexdigest())


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
    def from_json(cls, fields: Mapping[str, Any]) -> StoreEvidence:
        return cls(fields["name"], fields["system"], tuple(fields["removed"]), tuple(fields["kept"]))

    @property
    def places(self) -> frozenset[Place]:
        """Where the removed records were."""
        return frozenset((record["topic"], record["partition"], record["offset"]) for record in self.removed)


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
    fields: dict[str, Any] = {
        "certificate": VERSION,
        "rawlog": __version__,
        "made": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "asked": erasure.as_json(),
        "absent": [bytes_to_json(text) if isinstance(text, bytes) else text for text in absent],
        "records_removed": sum(len(store.removed) for store in stores),
        "records_kept": sum(part["records"] for store in stores for part in store.kept),
        "mentions": list(mentions),
        "elsewhere": list(elsewhere),
        "left_out": list(left_out),
        "source": {"paths": list(source), "files": [file.as_json() for file in source_files]},
        "result": {"path": target, "files": [file.as_json() for file in result_files]},
        "stores": [store.as_json() for store in stores],
    }
    return fields | {"sha256": seal(fields)}


def seal(content: Mapping[str, Any]) -> str:
    """The hash of a certificate, without its own."""
    plain = {name: value for name, value in content.items() if name != "sha256"}
    text = json.dumps(plain, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def lines(certificate: Mapping[str, Any]) -> Iterator[str]:
    """The certificate for people."""
    yield "Certificate of erasure"
    yield ""
    yield f"made          {certificate['made']} by rawlog {certificate['rawlog']}"
    yield f"source        {', '.join(map(printable, certificate['source']['paths']))}"
    yield f"result        {printable(certificate['result']['path'])}"
    for name, value in certificate["asked"].items():
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        yield f"asked         {name.replace('_', ' ')}: {printable(text)}"
    for text in certificate["absent"]:
        yield f"absent        {printable(str(text))}: no record had it"
    yield f"removed       {counted(certificate['records_removed'], 'record')}"
    yield f"kept          {counted(certificate['records_kept'], 'record')}"
    yield f"this content  SHA-256 {certificate['sha256']}"
    for note in certificate.get("elsewhere", ()):
        yield f"not erased    {printable(note)}"
    for path in certificate.get("left_out", ()):
        yield f"left out      {printable(path)}: not known, so not read and not copied"
    for note in certificate["mentions"]:
        yield f"still mentioned  {printable(note)}"
    for store in certificate["stores"]:
        yield from _store_lines(store)
    for title in ("source", "result"):
        yield ""
        yield f"Files of the {title}, with SHA-256"
        for file in certificate[title]["files"]:
            yield f"  {file['sha256']}  {file['size']:>14,}  {printable(file['path'])}"
    yield ""
    yield "`rawlog verify RESULT --certificate FILE` checks the result against the JSON form of this certificate."


def _store_lines(store: Mapping[str, Any]) -> Iterator[str]:
    if store["removed"]:
        yield ""
        yield f"Removed from {printable(store['name'] or store['system'])}: topic, partition, offset, SHA-256 of key, value and headers"
        for record in store["removed"][:SHOWN]:
            yield f"  {printable(str(record['topic']))} {record['partition']} {record['offset']} {record['sha256']}"
        if len(store["removed"]) > SHOWN:
            yield f"  and {len(store['removed']) - SHOWN:,} more, which the JSON form lists"
    if store["kept"]:
        yield ""
        yield f"Kept in {printable(store['name'] or store['system'])}: topic, partition, records, SHA-256 over them in their order"
        for part in store["kept"]:
            yield f"  {printable(str(part['topic']))} {part['partition']} {part['records']} {part['sha256']}"


def load(path: str) -> dict[str, Any]:
    """A certificate in its JSON form. OptionError for another file, AccessError for one that cannot be read."""
    try:
        certificate = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise AccessError(f"{path}: {error.strerror or error}") from None
    except ValueError:
        certificate = None
    if not isinstance(certificate, dict) or certificate.get("certificate") != VERSION:
        raise OptionError(f"{path}: not the certificate of an erasure, version {VERSION}, in its JSON form")
    return certificate


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


def decode_is_valid(request: Mapping[str, Any]) -> bool:
    """Whether a certificate says in words how rows were decoded, or that they were not."""
    return all(request.get(name) is None or isinstance(request[name], str) for name in ("decode", "schemas"))


def _invalid(certificate: Mapping[str, Any], transforms: tuple[Transform, ...]) -> str | None:
    """The first part of a certificate that cannot be used."""
    try:
        if not decode_is_valid(certificate.get("asked", {})):
            return "asked"
        Erasure.from_json(certificate.get("asked", {}), transforms).selection.check(RECORDS)
    except (OptionError, TypeError, ValueError, KeyError, AttributeError):
        return "asked"
    return _lacking(certificate, _SHAPE)


def _lacking(content: Any, shape: Any, name: str = "content") -> str | None:
    """The first part of a certificate that is missing or of another type."""
    if isinstance(shape, dict):
        if not isinstance(content, dict):
            return name
        lacking = (_lacking(content[key], inner, key) if key in content else key for key, inner in shape.items())
        return next((part for part in lacking if part is not None), None)
    if isinstance(shape, list):
        if not isinstance(content, list):
            return name
        return next((part for item in content if (part := _lacking(item, shape[0], name)) is not None), None)
    return None if shape is None or isinstance(content, shape) else name


# A result and its certificate --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Examination:
    """What a result has: records that were to be erased, the hashes over the others, and texts that were asked for."""

    remains: list[Place] = field(default_factory=list)
    kept: tuple[dict[str, Any], ...] = ()
    mentions: list[tuple[SearchText, str]] = field(default_factory=list)


def examine(files: Sequence[File], store: StoreEvidence, erasure: Erasure) -> Examination:
    """Read the records of a store of the result. DataError at damage."""
    outcome = Examination()
    evidence = look(
        files,
        erasure,
        store.system,
        _still(outcome, erasure, store.system),
        searched=erasure.searched(),
        gone=store.places if erasure.rewrite(store.system).content_only else frozenset(),
    )
    outcome.kept, outcome.mentions = tuple(evidence.kept_json()), evidence.mentions
    return outcome


def _still(outcome: Examination, erasure: Erasure, system: str) -> Callable[[pa.RecordBatch], NDArray[np.bool_]]:
    """Which rows are asked for and are still there; content that was erased is zeros."""
    import numpy as np

    content_only = erasure.rewrite(system).content_only

    def choose(batch: pa.RecordBatch) -> NDArray[np.bool_]:
        mask = erasure.mask(batch, system)
        for row in np.flatnonzero(mask).tolist() if content_only else ():
            mask[row] = bool(batch.column("value")[row].as_py().strip(b"\0"))
        for row in np.flatnonzero(mask).tolist():
            topic, partition, offset = (batch.column(name)[row].as_py() for name in ("topic", "partition", "offset"))
            outcome.remains.append((topic, partition, offset))
        return mask

    return choose


@dataclass(slots=True)
class Checkup:
    """What the rules of certificates see."""

    certificate: Mapping[str, Any]
    tree: Tree
    root: str
    transforms: tuple[Transform, ...] = ()
    _examined: dict[str, Examination] = field(default_factory=dict)

    @property
    def erasure(self) -> Erasure:
        return Erasure.from_json(self.certificate["asked"], self.transforms)

    @property
    def stores(self) -> list[StoreEvidence]:
        return [StoreEvidence.from_json(store) for store in self.certificate["stores"]]

    def examination(self, store: StoreEvidence) -> Examination:
        """What a store of the result has, read once for all rules."""
        if store.name not in self._examined:
            base = f"{self.root}/{store.name}" if store.name else self.root
            files = [file for file in self.tree if file.path == base or file.path.startswith(f"{base}/")]
            readable = [file for file in files if file.system == store.system and file.problem is None]
            self._examined[store.name] = examine(readable, store, self.erasure)
        return self._examined[store.name]

    def path(self, name: str) -> str:
        return f"{self.root}/{name}" if name not in ("", ".") else self.root


@rule("rawlog.certificate.content", Severity.ERROR)
def content(seen: Checkup) -> Iterator[Mark]:
    """The certificate of an erasure was changed: its own hash does not fit its content.

    Nothing that it says can be relied on. Take the certificate from where `rawlog erase` wrote it.
    """
    expected, actual = seen.certificate.get("sha256"), seal(seen.certificate)
    if expected != actual:
        yield Mark("the certificate was changed", expected=expected, found=actual)
    if (lacking := _invalid(seen.certificate, seen.transforms)) is not None:
        yield Mark(f"the certificate has no valid {lacking}")
        return
    for name, count in (
        ("records_removed", sum(len(store.removed) for store in seen.stores)),
        ("records_kept", sum(part["records"] for store in seen.stores for part in store.kept)),
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
    listed = {file["path"]: file for file in seen.certificate["result"]["files"]}
    present = {file.path: file for file in seen.tree}
    for name, file in listed.items():
        path = seen.path(name)
        if path not in present:
            yield Mark("a file of the certificate is missing", path=path)
            continue
        sha256 = file_hash(path, name).sha256
        if sha256 != file["sha256"]:
            yield Mark(
                "the file was changed since the certificate was made", path=path, expected=file["sha256"], found=sha256
            )
    names = {seen.path(name) for name in listed}
    yield from (Mark("a file that the certificate does not have", path=path) for path in present if path not in names)


@rule("rawlog.certificate.remains", Severity.ERROR)
def remains(seen: Checkup) -> Iterator[Mark]:
    """Something that was to be erased is in the result: a record, or a text of `--find` in the bytes of a file.

    The text may be in a file that no erasure changes, such as the name of a topic or a setting of the cluster. Records must not be there:
    erase again from the source.
    """
    for store in seen.stores:
        for topic, partition, offset in seen.examination(store).remains:
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
        yield from differences(store.kept, seen.examination(store).kept, seen.path(store.name))


def differences(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], path: str) -> Iterator[Mark]:
    """Partitions whose hashes over kept records differ."""
    old, new = ({(part["topic"], part["partition"]): part for part in parts} for parts in (before, after))
    for place in sorted({*old, *new}, key=str):
        if old.get(place) != new.get(place):
            counts = [str(part["records"]) if part else "none" for part in (old.get(place), new.get(place))]
            message = f"{place[0]} partition {place[1]}: other records than were kept"
            yield Mark(message, path=path, expected=f"{counts[0]} records", found=f"{counts[1]} records")


@rule("rawlog.certificate.elsewhere", Severity.WARNING)
def elsewhere(seen: Checkup) -> Iterator[Mark]:
    """A part of a log was not among the sources of an erasure, although their files say that it exists: segments of tiered storage.

    What was to be erased may still be there, and a broker serves it. Erase again, with the remote storage among the sources:
    `rawlog erase kafka-logs/ s3://bucket/prefix DST`.
    """
    yield from (Mark(str(text)) for text in seen.certificate.get("elsewhere") or ())


@rule("rawlog.certificate.mention", Severity.INFO)
def mention(seen: Checkup) -> Iterator[Mark]:
    """The text of an erased key, or one that `--where` compares with, is still in the result, outside of the records that were erased.

    It may be a coincidence, or a mention of the same person in a record of another key. `rawlog find TEXT RESULT` shows the records;
    `rawlog erase --find TEXT` erases them.
    """
    yield from _texts(seen, is_strict=False)


def _texts(seen: Checkup, *, is_strict: bool) -> Iterator[Mark]:
    texts = [text for text in seen.erasure.searched() if text.is_strict == is_strict]
    for store in seen.stores:
        for text, where in seen.examination(store).mentions:
            if text.is_strict == is_strict:
                yield Mark(f"{_quote(text)} in a record: {where}", path=seen.path(store.name))
    for file in seen.tree:
        if file.problem is None:
            for text, position in search_file(file.path, texts):
                yield Mark(f"{_quote(text)} in the bytes of the file", position=position, path=file.path)


def _quote(searched: SearchText) -> str:
    return repr(searched.text.decode("utf-8", "backslashreplace"))


RULES: tuple[Rule[Checkup], ...] = (content, result, remains, kept, elsewhere, mention)


def check(
    certificate: Mapping[str, Any], tree: Tree, root: str, transforms: tuple[Transform, ...] = ()
) -> list[Finding]:
    """What is wrong with a result, by its certificate. `transforms` decode rows if the erasure did so. DataError at damage in it."""
    seen = Checkup(certificate, tree, root.rstrip("/"), transforms)
    findings = []
    for certificate_rule in RULES if _invalid(certificate, transforms) is None else (content,):
        for mark in certificate_rule.check(seen):
            findings.append(as_finding(certificate_rule, mark))
    return findings


def as_finding(rule: Rule[Any], mark: Mark) -> Finding:
    """What a rule of certificates found."""
    texts = [None if value is None else str(value) for value in (mark.expected, mark.found)]
    return Finding(
        rule.code, rule.severity, mark.path, None, mark.position, mark.size, mark.offset, mark.message, *texts
    )


def unread(error: Exception) -> Finding:
    """That a result could not be compared with its certificate, because it is damaged."""
    return as_finding(kept, Mark(f"the result cannot be read: {str(error).splitlines()[0]}"))
