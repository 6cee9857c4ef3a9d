"""Metrics: the numbers of a Report for a monitoring system, as JSON or as Prometheus reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rawlog.core.report import Report

#: The ending of a file that gets the text form of Prometheus, as its node exporter wants it; other files get JSON.
PROMETHEUS = ".prom"
#: What a metric means, by its name without the verb.
_MEANINGS = {
    "success": "1 if the last run ended, 0 if it failed",
    "finished_timestamp_seconds": "when the last run ended",
    "seconds": "how long a phase of the last run took",
    "rows": "rows that the last run added to a table",
    "findings": "findings of the last run by severity",
    "files": "files that the last run read",
    "bytes": "bytes that the last run read",
}


@dataclass(frozen=True, slots=True)
class Metric:
    """A number with a name and labels."""

    name: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


def metrics_of(report: Report, finished: float) -> Iterator[Metric]:
    """The numbers of a run that ended at a time (seconds since 1970)."""
    yield Metric("success", 1)
    yield Metric("finished_timestamp_seconds", finished)
    for name, number in report.counts.items():
        if name in ("errors", "warnings"):
            yield Metric("findings", number, (("severity", name.removesuffix("s")),))
        else:
            yield Metric(name, number)
    for fact, name, label in (("tables", "rows", "table"), ("seconds", "seconds", "phase")):
        for key, number in (report.facts.get(fact) or {}).items():
            yield Metric(name, number, ((label, key),))


def failed(finished: float) -> list[Metric]:
    """The numbers of a run that failed."""
    return [Metric("success", 0), Metric("finished_timestamp_seconds", finished)]


def as_prometheus(verb: str, target: str, metrics: list[Metric]) -> str:
    """Metrics in the text form of Prometheus (version 0.0.4): gauges of the last run, with its target as a label."""
    lines: list[str] = []
    for name in dict.fromkeys(one.name for one in metrics):
        whole = re.sub(r"[^a-zA-Z0-9_]", "_", f"rawlog_{verb}_{name}")
        lines += [f"# HELP {whole} {_MEANINGS.get(name, name.replace('_', ' '))}", f"# TYPE {whole} gauge"]
        for one in metrics:
            if one.name == name:
                labels = ",".join(f'{key}="{_escaped(value)}"' for key, value in (("target", target), *one.labels))
                lines.append(f"{whole}{{{labels}}} {_number(one.value)}")
    return "\n".join(lines) + "\n"


def as_json(verb: str, target: str, metrics: list[Metric]) -> str:
    """Metrics as an object: a number for each name, or an object with a number for each label."""
    made: dict[str, Any] = {"verb": verb, "target": target}
    for one in metrics:
        if not one.labels:
            made[one.name] = one.value
        else:
            made.setdefault(one.name, {})[one.labels[0][1]] = one.value
    return json.dumps(made) + "\n"


def as_text(path: str, verb: str, target: str, metrics: list[Metric]) -> str:
    """Metrics in the form that the name of a file asks for."""
    return (as_prometheus if path.endswith(PROMETHEUS) else as_json)(verb, target, metrics)


def _escaped(value: str) -> str:
    printable = value.encode(errors="replace").decode()
    return printable.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
