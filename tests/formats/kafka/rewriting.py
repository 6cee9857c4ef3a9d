"""What reports on partitions say, for tests."""

from __future__ import annotations

from rawlog.core.report import Report
from rawlog.formats.kafka.store.lost_markers import Transaction
from tests.rewriting import rewritten

__all__ = ["rewritten", "transactions"]


def transactions(report: Report) -> list[Transaction]:
    """The transactions that a report on a repair names."""
    return [Transaction(**one) for one in report.facts["transactions"]]
