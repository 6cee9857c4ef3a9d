"""Every key and value of the golden registries, decoded without a registry."""

from __future__ import annotations

import json
import math
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rawlog
from rawlog.values.decode import ValueDecoder
from rawlog.values.registry import Catalog
from tests.data.golden import golden_path

REGISTRIES = ("confluent", "karapace")


def catalog_at(folder: Path) -> Catalog:
    made = Catalog()
    for row in rawlog.rows(folder, table="records", topic="_schemas", columns=["key", "value", "offset"]):
        made.add(row["key"], row["value"], row["offset"])
    return made


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) or isinstance(b, float):
        return not isinstance(a, (bool, str)) and not isinstance(b, (bool, str)) and math.isclose(a, b, rel_tol=1e-12)
    return type(a) is type(b) and a == b


CASES = [
    (registry, path.stem)
    for registry in REGISTRIES
    for path in sorted((golden_path("schemas", registry, "expected")).glob("*.ndjson"))
    if path.stem != "_schemas"
]


@pytest.mark.parametrize(("registry", "topic"), CASES, ids=str)
@pytest.mark.parametrize("side", ["key", "value"])
def test_every_record_is_decoded_as_expected(registry: str, topic: str, side: str) -> None:
    root = golden_path("schemas", registry)
    decoder = ValueDecoder(catalog_at(root / "data"), {side: "auto"})
    table = (
        rawlog.cat(root / "data", topic=topic).to_arrow().sort_by([("partition", "ascending"), ("offset", "ascending")])
    )
    batch = table.combine_chunks().to_batches()[0]
    found = decoder.decode(batch[side], batch["headers"], batch["topic"], side)
    expected = [json.loads(line) for line in (root / "expected" / f"{topic}.ndjson").read_text().splitlines()]
    assert batch.num_rows == len(expected)
    texts = found.values(pa.string()).to_pylist()
    for row, wanted in enumerate(expected):
        where = f"{topic} {wanted['partition']}/{wanted['offset']} {side}: {wanted.get('note')}"
        form = wanted[f"{side}_form"]
        assert bool(found.is_decoded[row]) == (form in ("avro", "json", "protobuf")), where
        assert found.reason(row) == wanted.get(f"{side}_error"), where
        if not found.is_decoded[row]:
            continue
        value = json.loads(texts[row] or "null")
        produced = wanted.get(f"produced_{side}", wanted[side])
        assert same(value, wanted[side]) or same(value, produced), f"{where}: {value} {wanted[side]}"
        used = found.schema_of(row)
        assert used is not None
        assert used.schema.id == wanted[f"{side}_schema_id"], where
        assert (used.subject, used.version) == (wanted[f"{side}_subject"], wanted[f"{side}_version"]), where
        assert used.schema.type == wanted[f"{side}_schema_type"], where
        assert used.state == wanted.get(f"{side}_schema_state", used.state), where
        assert found.trailing.get(row) == wanted.get(f"{side}_trailing_bytes"), where
        if form == "protobuf":
            assert found.messages[row] == (wanted[f"{side}_message"], tuple(wanted[f"{side}_message_index"])), where


@pytest.mark.parametrize("registry", REGISTRIES)
def test_the_versions_are_those_that_the_registry_answers(registry: str) -> None:
    """Every version that the registry lists, with id, text, GUID and state; and no other that is not deleted for good."""
    root = golden_path("schemas", registry)
    catalog = catalog_at(root / "data")
    answers = json.loads((root / "expected" / "registry.json").read_text())["subjects"]
    listed = {(name, one["version"]): one for name, every in answers.items() for one in every}
    found = {(one.name, one.version): one for one in catalog.subjects() if one.state != "hard_deleted"}
    assert found.keys() == listed.keys()
    for place, one in found.items():
        wanted = listed[place]
        assert (one.schema.id, one.state == "soft_deleted") == (wanted["id"], wanted["deleted"]), place
        assert (one.schema.type, one.schema.text) == (wanted.get("schemaType", one.schema.type), wanted["schema"]), (
            place
        )
        if "guid" in wanted and not wanted.get("metadata"):
            assert catalog.by_guid[uuid.UUID(wanted["guid"]).bytes].text == wanted["schema"], place


def test_a_decoder_can_be_sent_to_another_process() -> None:
    import pickle

    root = golden_path("schemas", "confluent")
    decoder = pickle.loads(pickle.dumps(ValueDecoder(catalog_at(root / "data"), {"value": "auto"})))
    table = rawlog.cat(root / "data", topic="orders").to_arrow()
    batch = table.combine_chunks().to_batches()[0]
    found = decoder.decode(batch["value"], batch["headers"], batch["topic"], "value")
    assert isinstance(found.schemas(), pa.StructArray)
    assert found.is_decoded.sum() == 81
