"""What reports on partitions say, for tests."""

from __future__ import annotations

from rawlog.formats.kafka.partition.markers import Transaction
from rawlog.model.report import Report
from tests.data.rewriting import rewritten

__all__ = ["rewritten", "transactions"]


def transactions(report: Report) -> list[Transaction]:
    """The transactions that a report on a repair names."""
    return [Transaction(**one) for one in report.facts["transactions"]]
