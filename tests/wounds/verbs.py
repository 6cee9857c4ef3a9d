"""The verbs: how each is run on a wounded copy, the class whose exit codes it gives, and how its result is read."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet
from click.testing import CliRunner

from rawlog.cli import cli
from tests.wounds.truth import Family, Record

CHECK, WRITE, REBUILD, READ, LOOK = "check", "write a store", "rebuild", "read everything", "look"
CLASSES = (CHECK, WRITE, REBUILD, READ, LOOK)


@dataclass
class Outcome:
    """What a verb did: its exit code, what it printed, and the records of its result (None if it has none)."""

    code: int
    out: str
    err: str
    target: Path
    records: Counter[Record] | None = None
    count: int | None = None
    crash: str = ""

    def objects(self) -> Iterator[Any]:
        """The JSON that it printed."""
        for line in self.out.splitlines():
            if line.startswith(("{", "[")):
                yield json.loads(line)


@dataclass(frozen=True)
class Verb:
    """`words` are the arguments; SRC is the wounded copy, SOUND the subject, REPLICA a sound replica, DST the target, KEY a key."""

    name: str
    cls: str
    words: str
    #: `store`, `jsonl`, `rows`, `lake`, `count`, `diff`; "" for none.
    result: str = ""
    #: Families on which it does nothing useful.
    not_for: frozenset[str] = frozenset()
    #: Run on this share of the wounds only: it is slow.
    is_slow: bool = False
    #: It leaves out records on purpose.
    filters: bool = False
    #: The verbs of the command line that it stands for besides its own.
    options: dict[str, str] = field(default_factory=dict)

    @property
    def command(self) -> str:
        return self.words.split()[0]


def _verb(name: str, cls: str, words: str, result: str = "", not_for: str = "", **extra: bool) -> Verb:
    return Verb(name, cls, words, result, frozenset(not_for.split()), **extra)


VERBS = [
    _verb("verify", CHECK, "verify SRC --json --threads 1"),
    _verb("verify-complete", CHECK, "verify SRC --complete --json --threads 1"),
    _verb("report", CHECK, "report SRC -o DST.html --json --threads 1"),
    _verb("repair", WRITE, "repair SRC DST --json --threads 1", "store"),
    _verb("restore", WRITE, "restore SRC DST --errors skip --json --threads 1", "store", "kraft rocketmq ambry replay"),
    _verb("rescue", WRITE, "rescue SRC --to DST --json --threads 1", "store", "kraft replay"),
    _verb("rescue-replica", WRITE, "rescue SRC REPLICA --to DST --json --threads 1", "store", "kraft replay"),
    _verb("compact", WRITE, "compact SRC DST --json --threads 1", "store", "kraft rocketmq replay", filters=True),
    _verb("erase-nothing", WRITE, "erase SRC DST --key no-such-key --json --threads 1", "store", "kraft"),
    _verb("erase", WRITE, "erase SRC DST --key KEY --json --threads 1", "store", "kraft", filters=True),
    _verb("rebuild", REBUILD, "rebuild SRC DST --json --threads 1", "store", "replay"),
    _verb("convert", READ, "convert SRC DST.jsonl --to jsonl --errors skip --show-secrets --json --threads 1", "jsonl"),
    _verb("ingest", READ, "ingest SRC --to DST --engine local --json --threads 1", "lake", is_slow=True),
    _verb("diff", READ, "diff SRC SOUND --errors skip --json --threads 1", "diff"),
    _verb("cat", LOOK, "cat SRC --errors skip --json --bytes base64 --show-secrets", "rows"),
    _verb("count", LOOK, "count SRC --errors skip --json", "count"),
    _verb("tail", LOOK, "tail SRC -n 1000000 --errors skip --json --bytes base64 --show-secrets", "rows"),
]
#: Verbs of the command line that no outcome is of, and why.
NOT_JUDGED = {
    "formats": "reads no files",
    "ls": "lists files by names, sizes and indexes; its own column says what is damaged",
    "head": "the first rows of cat",
    "find": "selects rows as cat does, by an index where it can",
    "explain": "shows one frame",
    "browse": "serves pages",
    "query": "SQL: the rows of cat; Spark or DuckDB",
    "sql": "as query",
    "lake": "reads a lake",
    "groups": "reads internal topics",
    "transactions": "reads one table",
    "cluster": "reads the metadata log alone",
    "extract": "writes files, not a store",
    "record": "reads a live cluster",
    "replay": "writes to a live cluster",
    "mirror": "reads and writes live clusters",
    "submit": "runs another verb",
    "completion": "reads no files",
    "doctor": "reads no files",
}


def run(verb: Verb, family: Family, target: Path, **places: str) -> Outcome:
    """Run a verb in this process."""
    words = [_filled(word, places | {"DST": str(target)}) for word in verb.words.split()]
    ran = CliRunner().invoke(cli, words, prog_name="rawlog")
    outcome = Outcome(ran.exit_code, ran.stdout, ran.stderr, target)
    if ran.exit_code == 70 or "Traceback" in ran.stderr:
        outcome.crash = (ran.stderr.strip().splitlines() or [""])[-1]
    elif verb.result:
        READERS[verb.result](outcome, family)
    return outcome


def _filled(word: str, places: dict[str, str]) -> str:
    name, dot, rest = word.partition(".")
    return places[name] + dot + rest if name in places else word


def _store(outcome: Outcome, family: Family) -> None:
    if outcome.target.exists():
        outcome.records = family.records(outcome.target)


def _jsonl(outcome: Outcome, family: Family) -> None:
    path = outcome.target.with_name(outcome.target.name + ".jsonl")
    files = sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]
    if path.exists():
        lines = (line for file in files for line in file.read_text().splitlines())
        outcome.records = _rows((json.loads(line) for line in lines), family)


def _printed(outcome: Outcome, family: Family) -> None:
    rows = (json.loads(line) for line in outcome.out.splitlines())
    outcome.records = _rows((_from_base64(row) for row in rows), family)


def _lake(outcome: Outcome, family: Family) -> None:
    """The rows of its table `records`; its table `findings` says what was found."""
    for file in sorted(outcome.target.glob("rawlog/findings/data/**/*.parquet")):
        findings = pyarrow.parquet.read_table(file, partitioning=None).to_pylist()
        outcome.out += "".join(f"{json.dumps(finding, default=str)}\n" for finding in findings)
    files = sorted(outcome.target.glob("**/records/data/**/*.parquet"))
    if outcome.target.exists():
        tables = [pyarrow.parquet.read_table(file, partitioning=None) for file in files if "/rawlog/" in str(file)]
        outcome.records = _rows((_from_arrow(row) for table in tables for row in table.to_pylist()), family)


def _count(outcome: Outcome, family: Family) -> None:
    outcome.count = next((found["count"] for found in outcome.objects() if "count" in found), None)


def _diff(outcome: Outcome, family: Family) -> None:
    for found in outcome.objects():
        if "verdict" in found:
            outcome.count = found["only_in_b"] + found["only_in_a"] + found["differs"]


READERS: dict[str, Callable[[Outcome, Family], None]] = {
    "store": _store, "jsonl": _jsonl, "rows": _printed, "lake": _lake, "count": _count, "diff": _diff,
}  # fmt: skip
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _rows(rows: Iterator[dict[str, Any]], family: Family) -> Counter[Record]:
    """The records of rows; metadata of a cluster is none of a partition's."""
    skips = family.name != "kraft"
    cleaned = (_plain(row) for row in rows)
    return Counter(family.row(row) for row in cleaned if not (skips and row["topic"] == "__cluster_metadata"))


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    row = {name: _bytes(value) if name in ("key", "value") else value for name, value in row.items()}
    row["headers"] = [header | {"value": _bytes(header["value"])} for header in row.get("headers") or ()]
    time = row["timestamp"]
    if isinstance(time, str):  # a year of more than four digits is none of a sound record
        time = (
            datetime.max.replace(tzinfo=UTC)
            if time[0] in "+-"
            else datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", time))
        )
    row["timestamp"] = None if time is None else (time - EPOCH) // timedelta(milliseconds=1)
    return row


def _bytes(value: Any) -> bytes | None:
    if isinstance(value, dict):
        return base64.b64decode(value["base64"])
    return value.encode() if isinstance(value, str) else value


def _from_base64(row: dict[str, Any]) -> dict[str, Any]:
    def decoded(value: str | None) -> bytes | None:
        return None if value is None else base64.b64decode(value)

    headers = [header | {"value": decoded(header["value"])} for header in row["headers"]]
    return row | {"key": decoded(row["key"]), "value": decoded(row["value"]), "headers": headers}


def _from_arrow(row: dict[str, Any]) -> dict[str, Any]:
    if row["timestamp"] is not None and row["timestamp"].tzinfo is None:
        row["timestamp"] = row["timestamp"].replace(tzinfo=UTC)
    return row
