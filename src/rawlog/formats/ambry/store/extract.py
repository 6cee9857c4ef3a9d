"""Blobs as files: envelopes decompressed, chunks joined, with a manifest."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from rawlog.formats.ambry import keys
from rawlog.formats.ambry.layouts import BLOB_TYPES, NONE, Kind
from rawlog.formats.ambry.log import Messages, message_error, scan
from rawlog.formats.ambry.store.rewrite import number_option
from rawlog.formats.ambry.store.state import LIVE, STATES
from rawlog.formats.ambry.store.store import BlobStore, blob_stores, now_of
from rawlog.formats.ambry.structures import Metadata, open_envelope, parse_metadata
from rawlog.io.output import Folder
from rawlog.io.storage import Source
from rawlog.model.errors import (
    CorruptError,
    DataError,
    OptionError,
    UnknownFormatError,
)
from rawlog.model.format import File
from rawlog.model.report import Action, Report
from rawlog.model.text import java_text

MANIFEST = "manifest.jsonl"
LONGEST = 180
NAMES = ("id", "filename")
_RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\..*)?")
_TEXTS = ("content_type", "owner_id", "service_id", "content_encoding", "filename", "reserved_metadata_blob_id")


@dataclass(slots=True)
class Blob:
    """A blob of a store, and the place of its content."""

    key: bytes
    state: str
    life_version: int
    path: str
    position: int
    size: int


def extract_blobs(files: Sequence[File], folder: Folder, options: Mapping[str, str]) -> Report:
    """Write the blobs of one or several stores as files, with `manifest.jsonl`.

    Options: `blobs` (ids, separated by commas; all by default), `names` (`id`, or `filename`: the stored one made safe), `state`
    (`live` by default, or `all` that still have content), `now`, `limit` of a decompressed blob. Encrypted content is left as it is,
    and the manifest says so. Chunks are looked for in all stores given. The report counts `blobs`, and has each problem with the content
    of a blob as lost (`incomplete` is their number). AccessError if a log segment cannot be read.
    """
    naming = options.get("names", NAMES[0])
    if naming not in NAMES:
        raise OptionError(f"names {naming!r}: {' or '.join(NAMES)} expected")
    blobs: dict[bytes, Blob] = {}
    for file in files:
        if file.format == "ambry.log":
            file.check_readable()
    stores = blob_stores(files)
    if not stores:
        raise UnknownFormatError("no Ambry store is here")
    for store in stores:
        blobs |= _blobs(store, now_of(options))
    if not blobs:
        raise OptionError("no blob with content is here")
    limit = number_option(options, "limit", 1 << 30) or 1 << 30
    writer = _Writer(folder, blobs, naming, limit)
    writer.run(_choose(blobs, options))
    writer.report.facts["files"] = sorted([MANIFEST, *writer.names])
    return writer.report


def _blobs(store: BlobStore, now: int) -> dict[bytes, Blob]:
    """The blobs of a store whose content is there, in the order of their first messages."""
    folded = store.state
    catalog, states = folded.catalog, folded.states(now)
    stored = np.flatnonzero((folded.answer >= 0) & (folded.put >= 0))
    blobs = {}
    for number in stored[np.argsort(folded.first[stored])].tolist():
        put = int(folded.put[number])
        key, life = catalog.key(put), int(folded.life_version[folded.answer[number]])
        path = store.logs[int(catalog.segment[put])].path
        place = int(catalog.offset[put]), int(catalog.size[put])
        blobs[keys.order(key)] = Blob(key, STATES[int(states[number])], life, path, *place)
    return blobs


def _choose(blobs: Mapping[bytes, Blob], options: Mapping[str, str]) -> list[bytes]:
    if options.get("blobs"):
        identities = [keys.order(keys.from_text(text.strip())) for text in options["blobs"].split(",")]
        missing = [
            text
            for text, identity in zip(options["blobs"].split(","), identities, strict=True)
            if identity not in blobs
        ]
        missing += [
            keys.text_of(blobs[identity].key)
            for identity in identities
            if identity in blobs and _is_erased(blobs[identity])
        ]
        if missing:
            raise OptionError(f"no content here of blob {missing[0]}")
        return identities
    state = options.get("state", LIVE)
    if state not in (LIVE, "all"):
        raise OptionError(f"state {state!r}: live or all expected")
    if state == "all":
        return [identity for identity, blob in blobs.items() if not _is_erased(blob)]
    return [identity for identity, blob in blobs.items() if blob.state == LIVE]


def _is_erased(blob: Blob) -> bool:
    """Whether a deleted blob has zeros instead of its content, by Ambry's hard delete or by `rawlog erase`."""
    if blob.state == LIVE:
        return False
    try:
        return bool(read_put(blob)["zeros"][0] == 1)
    except DataError:
        return False  # whoever extracts it reports why


def read_put(blob: Blob) -> Messages:
    """The PUT of a blob, checksums compared. DataError if it is damaged."""
    with Source(blob.path) as source:
        raw = source.read(blob.position, blob.size)
    messages = Messages(scan(np.frombuffer(raw, np.uint8), 0))
    if len(messages) != 1 or messages["kind"][0] != Kind.PUT:
        raise CorruptError("no whole PUT where the index says", path=blob.path, position=blob.position)
    if not messages.sound[0]:
        error = message_error(messages, 0)
        error.position = blob.position
        raise error.at(path=blob.path)
    return messages


class _Writer:
    """The files written so far, and the names in use."""

    def __init__(self, folder: Folder, blobs: Mapping[bytes, Blob], naming: str, limit: int) -> None:
        self.folder, self.blobs, self.naming, self.limit = folder, blobs, naming, limit
        self.report = Report(counts={"blobs": 0, "incomplete": 0})
        self.names: list[str] = []
        self.taken = {MANIFEST}

    def run(self, identities: Sequence[bytes]) -> None:
        parts = self._parts_of(identities)
        with self.folder.create(MANIFEST) as manifest:
            for identity in identities:
                if identity in parts:
                    continue  # written as part of the blob it belongs to
                row = self._write(self.blobs[identity])
                manifest.write(json.dumps(row, ensure_ascii=True).encode() + b"\n")

    def _parts_of(self, identities: Iterable[bytes]) -> set[bytes]:
        """The chunks of all metadata blobs that are written."""
        parts: set[bytes] = set()
        for identity in identities:
            try:
                messages = read_put(self.blobs[identity])
                if messages["blob_type"][0] == 1 and not _is_encrypted(messages):
                    metadata = parse_metadata(self._plain(messages)[0])
                    parts |= {keys.order(chunk.key) for chunk in metadata.chunks}
            except DataError:
                continue
        return parts

    def _write(self, blob: Blob) -> dict[str, Any]:
        row: dict[str, Any] = {
            "blob_id": keys.text_of(blob.key),
            "state": blob.state,
            "life_version": blob.life_version,
        }
        problems: list[str] = []
        try:
            messages = read_put(blob)
        except DataError as error:
            self._report_problems(blob, [error.message])
            return row | {"file": None, "problems": [error.message]}
        row |= _describe(messages)
        name = self._name(blob, row.get("filename"))
        digest, size = hashlib.sha256(), 0
        self.names.append(name)
        with self.folder.create(name) as out:
            for piece in self._pieces(messages, row, problems):
                size += _put(out, piece, digest)
        if not row["encrypted"] and not problems and row["properties_blob_size"] not in (size, NONE):
            problems.append(f"{size:,} bytes, {row['properties_blob_size']:,} by its properties")
        row |= {"file": name, "size": size, "sha256": digest.hexdigest(), "problems": problems}
        self.report.count("blobs")
        self._report_problems(blob, problems)
        return row

    def _report_problems(self, blob: Blob, problems: Sequence[str]) -> None:
        """What of a blob's content could not be written."""
        for problem in problems:
            self.report.count("incomplete")
            reason, stop = f"{keys.text_of(blob.key)}: {problem}", blob.position + blob.size
            self.report.add(Action.LOST, reason, blob.path, start=blob.position, stop=stop)

    def _pieces(self, messages: Messages, row: dict[str, Any], problems: list[str]) -> Iterator[bytes]:
        """The content of a blob, a chunk at a time."""
        plain, algorithm = messages.span(0, "content"), None
        if not row["encrypted"]:
            try:
                plain, algorithm = self._plain(messages)
            except DataError as error:
                problems.append(error.message)
        row["compression"] = algorithm
        if row["blob_type"] != BLOB_TYPES[1] or row["encrypted"]:
            yield plain
            return
        try:
            metadata: Metadata = parse_metadata(plain)
        except DataError as error:
            problems.append(error.message)
            yield plain
            return
        row["chunks"] = [keys.text_of(chunk.key) for chunk in metadata.chunks]
        for chunk in metadata.chunks:
            yield self._chunk(chunk.key, chunk.size, row, problems)

    def _chunk(self, key: bytes, size: int, row: dict[str, Any], problems: list[str]) -> bytes:
        """The content of a chunk; zeros if it cannot be read, so that the bytes after it keep their positions."""
        blob = self.blobs.get(keys.order(key))
        try:
            if blob is None:
                raise CorruptError("not in the stores given")
            messages = read_put(blob)
            if _is_encrypted(messages):
                row["encrypted"] = True
                return messages.span(0, "content")
            content = self._plain(messages)[0]
            if len(content) != size:
                raise CorruptError(f"{len(content):,} bytes, {size:,} expected")
            return content
        except DataError as error:
            problems.append(f"chunk {keys.text_of(key)}: {error.message}")
            return bytes(min(size, self.limit))

    def _plain(self, messages: Messages) -> tuple[bytes, str | None]:
        """Content without its envelope, and how it was compressed."""
        content = messages.span(0, "content")
        if messages["is_compressed"][0] != 1:
            return content, None
        algorithm, plain = open_envelope(content, self.limit)
        return plain, algorithm

    def _name(self, blob: Blob, stored: str | None) -> str:
        ident = keys.text_of(blob.key)
        if len(ident) > LONGEST:
            ident = hashlib.sha256(blob.key).hexdigest()
        name = safe_name(stored) if self.naming == "filename" and stored else ident
        if name.casefold() in self.taken:
            stem, dot, suffix = name.rpartition(".")
            name = f"{stem}-{ident}.{suffix}" if dot and stem else f"{name}-{ident}"
        number = 2
        while name.casefold() in self.taken:
            name, number = f"{ident}-{number}", number + 1
        self.taken.add(name.casefold())
        return name


def _put(out: IO[bytes], piece: bytes, digest: Any) -> int:
    out.write(piece)
    digest.update(piece)
    return len(piece)


def _is_encrypted(messages: Messages) -> bool:
    if messages["is_encrypted"][0] == 1 or messages["encryption_key_size"][0] >= 0:
        return True
    return keys.parse(messages.key(0)).is_encrypted


def _describe(messages: Messages) -> dict[str, Any]:
    """What a PUT says of its blob."""
    row: dict[str, Any] = {}
    for name in _TEXTS:
        size = int(messages[f"{name}_size"][0])
        row[name] = java_text(messages.span(0, name)) if size > 0 else None
    for name in ("account_id", "container_id", "time_to_live", "creation_time", "properties_blob_size"):
        row[name] = int(messages[name][0])
    row["is_private"] = int(messages["is_private"][0]) == 1
    row["user_metadata"] = messages.span(0, "user_metadata").hex()
    row["blob_type"] = BLOB_TYPES[int(messages["blob_type"][0])]
    row["encrypted"] = _is_encrypted(messages)
    return row


def safe_name(text: str) -> str:
    """A stored file name made safe for any system: one component, no control characters, not hidden, not reserved."""
    text = unicodedata.normalize("NFC", text).replace("\\", "/").rpartition("/")[2]
    kept = "".join(
        "_" if unicodedata.category(character)[0] == "C" or character in '<>:"|?*/' else character for character in text
    )
    kept = kept.strip(" .") or "_"
    if _RESERVED.fullmatch(kept) or kept.startswith("-"):
        kept = f"_{kept}"
    while len(kept.encode()) > LONGEST:
        stem, dot, suffix = kept.rpartition(".")
        kept = f"{stem[:-1]}.{suffix}" if dot and len(stem) > 1 else kept[:-1]
    return kept
