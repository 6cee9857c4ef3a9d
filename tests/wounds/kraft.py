"""KRaft: a metadata log of many segments with its snapshots, as a controller keeps it."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.wounds.kafka import BROKERS, Kafka
from tests.wounds.truth import Subject


class Kraft(Kafka):
    name = "kraft"
    data = ("__cluster_metadata-0/*.log",)
    derived = tuple(f"__cluster_metadata-0/*.{kind}" for kind in ("index", "timeindex", "txnindex", "snapshot"))
    skip = "nothing is skipped"


FAMILY = Kraft()


def controller(root: Path) -> None:
    shutil.copytree(BROKERS / "broker-4.3.0" / "data" / "__cluster_metadata-0", root / "__cluster_metadata-0")


SUBJECTS = [Subject("kraft-log", FAMILY, controller, frozenset({"snapshots", "epochs"}))]
