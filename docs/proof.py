"""Count what the tests declare, for docs/proof.md: `python docs/proof.py` writes docs/proof.json; docs/build.py makes the tables.

Collecting all tests takes a minute, so the page is compared with the stored counts, and those are made by `make proof`.
"""

from __future__ import annotations

import ast
import contextlib
import datetime
import io
import json
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STORED = ROOT / "docs" / "proof.json"
#: The verbs that the tests with real systems try, by file. A file that is missing here is an error.
TRIED = {
    "cli/test_chains.py": "several in a row",
    "engines/spark/test_stream_broker.py": "Spark stream",
    "formats/kafka/cluster/test_broker.py": "cluster",
    "formats/kafka/internal/test_newest_schemas.py": "groups, transactions",
    "formats/kafka/log/test_judges.py": "cat",
    "formats/kafka/log/test_writer_brokers.py": "convert",
    "formats/kafka/partition/test_compact_brokers.py": "compact",
    "formats/kafka/partition/test_continuity_brokers.py": "repair",
    "formats/kafka/partition/test_lost_markers_brokers.py": "repair",
    "formats/kafka/partition/test_repair_brokers.py": "repair",
    "formats/kafka/partition/test_retention_brokers.py": "verify",
    "formats/kafka/partition/test_tiers_brokers.py": "cat",
    "formats/rocketmq/test_broker.py": "repair, convert",
    "formats/rocketmq/test_settings_brokers.py": "repair, rebuild",
    "live/test_brokers.py": "record, replay",
    "live/test_leaders.py": "record, replay",
    "live/test_oldest.py": "record, replay",
    "live/test_security.py": "record, replay",
    "live/test_transactions.py": "replay",
    "rescue/test_new_cluster.py": "rescue",
    "rescue/test_rescue_brokers.py": "rescue",
    "startup/test_startup_brokers.py": "verify",
    "verbs/test_erase_brokers.py": "erase, convert",
    "verbs/test_groups_brokers.py": "groups, transactions",
    "verbs/test_restore_brokers.py": "restore",
}
#: Tests of the services themselves and of benchmarks prove nothing.
NOTHING = ("test_services.py", "test_benchmarks.py")
NAMES = {
    "KAFKA_3": "Kafka 3.9.2",
    "KAFKA_4": "Kafka 4.3.0",
    "ROCKETMQ_4": "RocketMQ 4.9.7",
    "ROCKETMQ_5": "RocketMQ 5.3.3",
}
NAMES |= {
    "KAFKA_2": "Kafka 2.8.2",
    "ROCKETMQ_55": "RocketMQ 5.5.1",
    "kafka_3": "Kafka 3.9.2",
    "kafka_4": "Kafka 4.3.0",
    "[3]": "Kafka 3.9.2",
    "[4]": "Kafka 4.3.0",
}


class Collector:
    """A plugin of pytest that takes the tests."""

    def __init__(self) -> None:
        self.items: list[Any] = []

    def pytest_collection_finish(self, session: Any) -> None:
        self.items = list(session.items)


def releases(item: Any) -> list[str]:
    """The releases that a test names: by its case, its fixtures, or the constants in its file."""
    system = "RocketMQ" if "rocketmq" in str(item.path) else "Kafka"
    case = re.search(r"\[.*\]", item.name)
    found = re.findall(r"\d+\.\d+\.\d+", case[0]) if case else []
    if found:
        return [f"{system} {release}" for release in found[:1]]
    marks = [case[0] if case else "", *item.fixturenames]
    named = [NAMES[mark] for mark in marks if mark in NAMES]
    text = item.path.read_text()
    return (
        named
        or sorted({NAMES[word] for word in re.findall(r"\b(?:KAFKA|ROCKETMQ)_\d+\b", text)})
        or [f"{system}, as the test says"]
    )


def count() -> dict[str, Any]:
    import pytest

    collector = Collector()
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(["--collect-only", "-qq", "-n", "0"], plugins=[collector])
    cases: dict[str, Counter[str]] = defaultdict(Counter)
    kinds: Counter[str] = Counter()
    for item in collector.items:
        marks = {mark.name for mark in item.iter_markers()}
        file = str(item.path.relative_to(ROOT / "tests"))
        kind = next((name for name in ("broker", "spark", "browser", "service") if name in marks), "none of these")
        kinds[kind] += 1
        if kind == "broker" and not file.endswith(NOTHING):
            for release in releases(item):
                cases[file][release] += 1
    from tests.wounds import suite
    from tests.wounds.verbs import VERBS

    wounds: Any = defaultdict(Counter)
    for name, wound in suite.cases():
        subject = suite.SUBJECTS[name]
        for verb in VERBS:
            left_out = verb.name not in subject.only if subject.only else verb.name in subject.not_for
            if not (
                left_out or subject.family.name in verb.not_for or (verb.is_slow and not suite.shares(name, wound))
            ):
                wounds[subject.family.name][verb.name] += 1
    wounds = {
        family: {verb.name: counts[verb.name] for verb in VERBS if counts[verb.name]}
        for family, counts in wounds.items()
    }
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "kinds": dict(kinds.most_common()),
        "brokers": {file: dict(sorted(counts.items())) for file, counts in sorted(cases.items())},
        "wounds": wounds,
        "each_run": len(suite.chosen()),
    }


def about(file: Path) -> str:
    """What a file of tests says of itself: the first paragraph of its docstring."""
    return " ".join((ast.get_docstring(ast.parse(file.read_text())) or "").split("\n\n")[0].split()).replace("|", "\\|")


def table() -> str:
    """The matrix of real systems, the wounds, and the number of tests."""
    stored = json.loads(STORED.read_text())
    rows = [
        f"Counted on {stored['date']}.",
        "",
        "| system and release | verb | what is tried, and who judges | tests |",
        "|---|---|---|---|",
    ]
    lines: Counter[tuple[str, str, str]] = Counter()
    for file, counts in stored["brokers"].items():
        for release, number in counts.items():
            lines[(release, TRIED[file], about(ROOT / "tests" / file))] += number
    rows += [f"| {release} | {verb} | {text} | {number} |" for (release, verb, text), number in sorted(lines.items())]
    rows += ["", "| wounds, all judged by an oracle that knows the truth | " + " | ".join(stored["wounds"]) + " |"]
    rows.append("|---|" + "---|" * len(stored["wounds"]))
    verbs = list(dict.fromkeys(verb for counts in stored["wounds"].values() for verb in counts))
    for verb in verbs:
        rows.append(f"| {verb} | " + " | ".join(str(c.get(verb, "")) for c in stored["wounds"].values()) + " |")
    rows += [
        "",
        f"`make deep` tries all of these; each run of the tests takes {stored['each_run']} wounds with all verbs that fit.",
    ]
    total = sum(stored["kinds"].values())
    rows += [
        "",
        f"{total:,} tests: " + ", ".join(f"{number:,} {name}" for name, number in stored["kinds"].items()) + ".",
    ]
    return "\n".join(rows)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    STORED.write_text(json.dumps(count(), indent=1) + "\n")
    missing = set(json.loads(STORED.read_text())["brokers"]) - set(TRIED)
    sys.exit(f"docs/proof.py does not say what these try: {missing}" if missing else 0)
