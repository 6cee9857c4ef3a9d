"""`explain` covers every byte of a batch, names it and says what it means."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

import rawlog
from rawlog import registry
from rawlog.io.walk import walk
from rawlog.model.explain import Node
from tests.data.golden import kafka_cases, vectors

SEED = bytes.fromhex(
    "00000000000000000000004f0000000102b069457c00000000000000000191e05af81800000191e05af818ffffffffffffffffffffffffffff"
    "000000013a000000012e010c00116d657461646174612e76657273696f6e00140000"
)


def explained(path: Path, number: int = 0) -> Node:
    log = rawlog.open(path)
    format = registry.formats()[str(log.files[0].format)]
    for frames in walk(log.files[0], format):
        (node,) = format.codec.explain(frames.slice(number, number + 1), log.files[0])  # type: ignore[misc]
        return node
    raise AssertionError("no frame")


def leaves(node: Node) -> list[Node]:
    return [one for _, one in node.walk() if not one.children and one.size and one.inside is None]


def covered(node: Node) -> list[tuple[int, int]]:
    return sorted({(one.position, one.position + one.size) for one in leaves(node)})


def test_the_91_bytes_of_a_metadata_batch_to_the_last_bit(tmp_path: Path) -> None:
    path = tmp_path / "__cluster_metadata-0" / f"{0:020d}.log"
    path.parent.mkdir()
    path.write_bytes(SEED)
    node = explained(path)
    spans = covered(node)
    assert spans[0][0] == 0
    assert spans[-1][1] == 91
    assert all(one[1] == other[0] for one, other in pairwise(spans)), "no gap, no overlap"
    said = {one.name: (one.value, one.meaning) for _, one in node.walk()}
    assert said["crc"] == (2959689084, "right")
    assert said["base_timestamp"][1] == "2024-09-11T09:12:23.832Z"
    assert said["key length"] == (-1, "null")
    assert said["record type"][0] == 12
    assert said["record version"][0] == 0
    assert said["header_count"][0] == 0


@pytest.mark.parametrize("name", [name for name in vectors() if name.startswith(("v0-", "v1-", "v2-"))])
def test_every_byte_is_covered_once(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(vectors()[name])
    node = explained(path)
    spans = covered(node)
    assert spans[0][0] == 0
    assert spans[-1][1] == node.size
    assert all(one[1] == other[0] for one, other in pairwise(spans))


def test_every_golden_segment_can_be_explained() -> None:
    for case in kafka_cases():
        for path in case.segments:
            if path.stat().st_size:
                assert explained(path).size


@pytest.mark.parametrize("name", ["v0-gzip", "v0-lz4", "v1-gzip", "v2-zstd"])
def test_what_is_compressed_is_shown_inside(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(vectors()[name])
    inner = [one for _, one in explained(path).walk() if one.inside == name.partition("-")[2]]
    assert {one.value for one in inner if one.name == "key"} >= {b"k0", b"k2"}
