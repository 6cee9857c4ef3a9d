"""Every bit of a small real file of each format is flipped, and the file is cut at every length: what does `verify` say?

`make every-byte` writes docs/every-byte.json, from which `make docs` makes the table in docs/every-byte.md. tests/test_every_byte.py does
a part of it again and compares.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import rawlog
from rawlog.model.errors import RawlogError

ROOT = Path(__file__).parent.parent
STORED = ROOT / "docs" / "every-byte.json"
KAFKA = "tests/golden/kafka/broker-4.3.0/data"
LEGACY = "tests/golden/kafka/legacy"
#: Verdicts, the strongest first: a checksum does not fit; another rule finds an error or a warning; there is an info; there is nothing.
VERDICTS = {"c": "checksum", "r": "rule", "i": "info", ".": "nothing"}
CHECKSUM = re.compile("checksum|crc", re.IGNORECASE)


class Case(NamedTuple):
    """A file of a store of a real system. Only its first `limit` bytes are flipped, and cut."""

    name: str
    store: str
    file: str
    limit: int = 500


CASES = (
    Case("Kafka log, format 2", f"{KAFKA}/transaction-open-0", "00000000000000000000.log"),
    Case("Kafka log, format 1", f"{LEGACY}/broker-0.10.0.1/data/plain-0", "00000000000000000000.log", 300),
    Case("Kafka log, format 0", f"{LEGACY}/broker-0.9.0.1/data/plain-0", "00000000000000000000.log", 300),
    Case("Kafka offset index", f"{KAFKA}/idempotent-0", "00000000000000000000.index"),
    Case("Kafka time index", f"{KAFKA}/idempotent-0", "00000000000000000000.timeindex"),
    Case("Kafka transaction index", f"{KAFKA}/transactions-1", "00000000000000000015.txnindex"),
    Case("Kafka producer snapshot", f"{KAFKA}/transaction-open-0", "00000000000000000021.snapshot"),
    Case("Kafka leader-epoch checkpoint", f"{KAFKA}/transaction-open-0", "leader-epoch-checkpoint"),
    Case(
        "KRaft checkpoint", "samples/kafka-crashed/__cluster_metadata-0", "00000000000000000000-0000000000.checkpoint"
    ),
    Case("kafka-replay recording, version 0", "tests/golden/replay/v0", "basic-v0.1.0.log", 250),
    Case("kafka-replay recording, version 1", "tests/golden/replay/v1", "basic-v1.0.0.log", 250),
    Case("kafka-replay recording, version 2", "tests/golden/replay/v2", "find.log", 250),
    Case("RocketMQ commit log", "samples/rocketmq/store", "commitlog/00000000000000000000", 250),
    Case("RocketMQ consume queue", "samples/rocketmq/store", "consumequeue/T1/0/00000000000000000000", 40),
    Case("RocketMQ index", "samples/rocketmq/store", "index/20261115194649471", 100),
    Case("RocketMQ checkpoint", "samples/rocketmq/store", "checkpoint", 32),
    Case("Ambry log", "samples/ambry/9", "0_0_log", 400),
    Case("Ambry index", "samples/ambry/9", "0_0_1090_index", 300),
)


#: Memory, where there is such a place.
PLACE = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class Bench:
    """A copy of a case's store below a folder. `judge` gives the verdict of `verify` on other bytes."""

    def __init__(self, case: Case, folder: str) -> None:
        self.case = case
        source = ROOT / case.store
        self.store = Path(folder, source.name)
        if case.name.startswith("kafka-replay"):
            self.store.mkdir()
            shutil.copyfile(source / case.file, self.store / case.file)
        else:
            shutil.copytree(source, self.store, copy_function=shutil.copyfile)
        self.path = self.store / case.file
        self.data = self.path.read_bytes()
        self.size = min(case.limit, len(self.data))
        self.before: Counter[tuple[str, str]] = Counter()
        self.before = self._findings()

    def _findings(self) -> Counter[tuple[str, str]]:
        """Kinds of findings. What breaks the frames of a file has one code; whether it is a checksum, its message says."""
        findings = rawlog.verify(self.store)
        kinds = Counter(
            (one.code, "checksum" if CHECKSUM.search(f"{one.code} {one.message}") else one.severity.value)
            for one in findings
        )
        return kinds if findings.files else Counter({("of no known format", "error"): 1})

    def judge(self, data: bytes) -> str:
        self.path.write_bytes(data)
        found = self._findings() - self.before
        kinds = {kind for _, kind in found}
        return "c" if "checksum" in kinds else "r" if kinds - {"info"} else "i" if kinds else "."

    def flip(self, place: int) -> str:
        """The verdict on one flipped bit; `place` counts bits from the first byte."""
        data = bytearray(self.data)
        data[place // 8] ^= 0x80 >> place % 8
        return self.judge(bytes(data))

    def cut(self, size: int) -> str:
        return self.judge(self.data[:size])

    def fields(self) -> Iterator[tuple[int, int, str]]:
        """Start, stop and name of each field in the part that is flipped, as `explain` shows them."""
        self.path.write_bytes(self.data)
        at = 0
        for number in range(1000):
            try:
                nodes = rawlog.explain(self.path, number=number).nodes if number else rawlog.explain(self.path).nodes
            except RawlogError:
                return
            for top in nodes:
                for _, node in top.walk():
                    if not node.children and not node.inside and node.position < self.size and node.size:
                        name = re.sub(r"\d+", "N", node.name if node is top else f"{top.name}: {node.name}")
                        yield node.position, node.position + node.size, name
                at = max(at, top.position + top.size)
            if at >= self.size:
                return


def run(case: Case) -> dict[str, Any]:
    """All verdicts on a case: a character for each bit, and for each length."""
    with tempfile.TemporaryDirectory(dir=PLACE) as folder:
        bench = Bench(case, folder)
        flips = "".join(bench.flip(place) for place in range(bench.size * 8))
        cuts = "".join(bench.cut(size) for size in range(bench.size))
        fields: dict[str, list[list[int]]] = {}
        for start, stop, name in bench.fields():
            if [start, stop] not in fields.setdefault(name, []):
                fields[name].append([start, stop])
    return {"size": len(bench.data), "flips": packed(flips), "cuts": packed(cuts), "fields": fields}


def packed(verdicts: str) -> str:
    """Runs of one verdict as a number and a character."""
    return re.sub(r"(.)\1*", lambda run: f"{len(run[0])}{run[1]}", verdicts)


def unpacked(text: str) -> str:
    return "".join(verdict * int(count) for count, verdict in re.findall(r"(\d+)(\D)", text))


def table() -> str:
    """The tables of the page, from what is stored."""
    parts = []
    for name, case in json.loads(STORED.read_text()).items():
        flips, cuts = unpacked(case["flips"]), unpacked(case["cuts"])
        total, lengths = Counter(flips), Counter(cuts)
        share = ", ".join(f"{text} {total[key] / len(flips):.0%}" for key, text in VERDICTS.items() if total[key])
        ends = ", ".join(f"{text} {lengths[key] / len(cuts):.0%}" for key, text in VERDICTS.items() if lengths[key])
        size = f"{len(cuts):,} of {case['size']:,} bytes" if len(cuts) < case["size"] else f"{len(cuts):,} bytes"
        parts.append(f"### {name}\n\n{size}. A flipped bit: {share}. A cut: {ends}.")
        rows = ["| field | bits | checksum | rule | info | nothing |", "|---|---|---|---|---|---|"]
        for field, spans in case["fields"].items():
            bits = "".join(flips[start * 8 : stop * 8] for start, stop in spans)
            counts = Counter(bits)
            cells = " | ".join(str(counts[key] or "") for key in VERDICTS)
            label = field.replace("|", "\\|").replace("<", "&lt;")
            rows.append(f"| {label} | {len(bits)} | {cells} |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts)


def sample(case: Case, count: int, seed: int) -> list[tuple[str, str, str]]:
    """Some bits and lengths again: what is stored, what is found now, and which it was, where the two differ."""
    stored = json.loads(STORED.read_text())[case.name]
    flips, cuts = unpacked(stored["flips"]), unpacked(stored["cuts"])
    draw = random.Random(seed)
    differences = []
    with tempfile.TemporaryDirectory(dir=PLACE) as folder:
        bench = Bench(case, folder)
        for place in draw.sample(range(len(flips)), min(count, len(flips))):
            if (now := bench.flip(place)) != flips[place]:
                differences.append((f"bit {place % 8} of byte {place // 8}", VERDICTS[flips[place]], VERDICTS[now]))
        for size in draw.sample(range(len(cuts)), min(count // 2, len(cuts))):
            if (now := bench.cut(size)) != cuts[size]:
                differences.append((f"cut at {size}", VERDICTS[cuts[size]], VERDICTS[now]))
    return differences


def main() -> None:
    chosen = [case for case in CASES if not sys.argv[1:] or any(word in case.name for word in sys.argv[1:])]
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    for case in chosen:
        stored[case.name] = run(case)
        print(case.name, Counter(unpacked(stored[case.name]["flips"])), flush=True)
        ordered = {each.name: stored[each.name] for each in CASES if each.name in stored}
        STORED.write_text(json.dumps(ordered, indent=0) + "\n")


if __name__ == "__main__":
    main()
