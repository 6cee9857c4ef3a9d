"""Remote storage made of golden partitions, in the layouts that tiered storage plug-ins write. Imports nothing of rawlog."""

from __future__ import annotations

import base64
import json
import random
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import zstandard

if TYPE_CHECKING:
    from tests.services.s3 import S3Server

TEXT = {"index": "offset", "timeindex": "timestamp", "snapshot": "producerSnapshot", "txnindex": "transaction"}
LAYOUTS = ("local", "plain", "aiven", "aiven-zstd")
#: From SegmentManifestV1SerdeTest and ChunkIndexSerializationTest of the plug-in: what it writes.
FIXED_MANIFEST = (
    '{"version":"1","chunkIndex":{"type":"fixed","originalChunkSize":100,"originalFileSize":1000,"transformedChunkSize":110,'
    '"finalTransformedChunkSize":110},"segmentIndexes":{"offset":{"position":0,"size":1},"timestamp":{"position":1,"size":1},'
    '"producerSnapshot":{"position":2,"size":1},"leaderEpoch":{"position":3,"size":1},"transaction":{"position":4,"size":1}},'
    '"compression":false,"remoteLogSegmentMetadata":{"remoteLogSegmentId":{"topicIdPartition":{"topicId":"lZ6vvmajTWKDBUTV6SQAtQ",'
    '"topicPartition":{"topic":"topic1","partition":42}},"id":"adh9f8BMS4anaUnD8KWfWg"},"startOffset":0,"endOffset":1000,'
    '"maxTimestampMs":1000000000,"brokerId":2,"eventTimestampMs":2000000000,"segmentLeaderEpochs":{"0":100,"1":200,"2":300}}}'
)
CHUNK_SIZES = "KLUv/SAPeQAAAAAAAwAAAAoBAAoAAAAe"
VARIABLE_MANIFEST = (
    '{"version":"1","chunkIndex":{"type":"variable","originalChunkSize":100,"originalFileSize":250,"transformedChunks":"'
    + CHUNK_SIZES
    + '"},"segmentIndexes":{"offset":{"position":0,"size":1},"timestamp":{"position":1,"size":1},"producerSnapshot":'
    '{"position":2,"size":1},"leaderEpoch":{"position":3,"size":1},"transaction":null},"compression":true}'
)


def short_id(rng: random.Random) -> str:
    """An id as Kafka writes it."""
    return base64.urlsafe_b64encode(rng.randbytes(16)).decode().rstrip("=")


def topic_id(folder: Path) -> str:
    return (folder / "partition.metadata").read_text().rpartition(" ")[2].strip()


def bases(folder: Path) -> list[int]:
    """The segments of a partition directory by their base offsets."""
    return sorted(int(path.stem) for path in folder.glob("*.log"))


def copy_segments(folder: Path, tier: Path, chosen: Sequence[int], layout: str, rng: random.Random) -> dict[int, str]:
    """Copy segments of a partition directory to remote storage; the ids they get, by base offset."""
    topic, _, number = folder.name.rpartition("-")
    all_bases = bases(folder)
    ids = {}
    for base in chosen:
        ids[base] = own = short_id(rng)
        following = next((one for one in all_bases if one > base), None)
        files = {kind: folder / f"{base:020d}.{kind}" for kind in ("log", "index", "timeindex", "txnindex")}
        if following is not None:
            files["snapshot"] = folder / f"{following:020d}.snapshot"
        files = {kind: path for kind, path in files.items() if path.is_file()}
        epochs = epochs_up_to(folder / "leader-epoch-checkpoint", following)
        if layout == "local":
            target = tier / f"{folder.name}-{topic_id(folder)}"
            target.mkdir(parents=True, exist_ok=True)
            for kind, path in files.items():
                shutil.copy(path, target / f"{base}-{own}.{kind}")
            (target / f"{base}-{own}.leader_epoch_checkpoint").write_bytes(epochs)
        elif layout == "plain":
            target = tier / f"{folder.name}-{topic_id(folder)}"
            target.mkdir(parents=True, exist_ok=True)
            for kind, path in files.items():
                if kind != "snapshot":
                    shutil.copy(path, target / f"{base:020d}.{kind}")
        else:
            target = tier / f"{topic}-{topic_id(folder)}" / number
            target.mkdir(parents=True, exist_ok=True)
            write_chunks(target / f"{base:020d}-{own}", files, epochs, is_compressed=layout == "aiven-zstd", chunk=200)
    return ids


def epochs_up_to(checkpoint: Path, end: int | None) -> bytes:
    """A leader epoch checkpoint as a broker copies it with a segment: what begins at the segment's end or later is not in it."""
    version, _, *entries = checkpoint.read_text().splitlines()
    kept = [entry for entry in entries if end is None or int(entry.split()[1]) < end]
    return "\n".join([version, str(len(kept)), *kept, ""]).encode()


def write_chunks(stem: Path, files: dict[str, Path], epochs: bytes, *, is_compressed: bool, chunk: int) -> None:
    """One segment as Aiven's plug-in writes it."""
    data = files["log"].read_bytes()
    pieces = [data[at : at + chunk] for at in range(0, len(data), chunk)]
    stored = [zstandard.compress(piece) for piece in pieces] if is_compressed else pieces
    index: dict[str, object] = {"originalChunkSize": chunk, "originalFileSize": len(data)}
    if is_compressed:
        packed = base64.b64encode(zstandard.compress(encode_sizes([len(one) for one in stored]))).decode()
        index = {"type": "variable", **index, "transformedChunks": packed}
    else:
        last = len(stored[-1]) if stored else 0
        index = {"type": "fixed", **index, "transformedChunkSize": chunk, "finalTransformedChunkSize": last}
    places, whole = {}, b""
    members = [*((TEXT[kind], files[kind].read_bytes()) for kind in TEXT if kind in files), ("leaderEpoch", epochs)]
    for name, content in members:
        places[name] = {"position": len(whole), "size": len(content)}
        whole += content
    places.setdefault("transaction", None)  # type: ignore[arg-type]
    manifest = {"version": "1", "chunkIndex": index, "segmentIndexes": places, "compression": is_compressed}
    stem.with_name(stem.name + ".log").write_bytes(b"".join(stored))
    stem.with_name(stem.name + ".indexes").write_bytes(whole)
    stem.with_name(stem.name + ".rsm-manifest").write_text(json.dumps(manifest))


def encode_sizes(sizes: Sequence[int]) -> bytes:
    """The sizes of chunks as the plug-in encodes them."""
    if len(sizes) < 2:
        return struct.pack(">i", len(sizes)) + b"".join(struct.pack(">i", one) for one in sizes)
    least = min(sizes[:-1])
    width = max(1, (max(sizes[:-1]) - least).bit_length() + 7 >> 3)
    body = b"".join((one - least).to_bytes(width, "big") for one in sizes[:-1])
    return struct.pack(">iib", len(sizes), least, width) + body + struct.pack(">i", sizes[-1])


def remove_segments(folder: Path, gone: Sequence[int]) -> None:
    """Delete segments of a partition directory, as local retention does."""
    for base in gone:
        for path in folder.glob(f"{base:020d}.*"):
            path.unlink()


def upload(server: S3Server, folder: Path, bucket: str) -> None:
    """Copy a directory to `logs` in a new bucket."""
    store = server.filesystem()
    store.create_dir(bucket)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with store.open_output_stream(f"{bucket}/logs/{path.relative_to(folder)}") as out:
                out.write(path.read_bytes())
