"""RocketMQ: what a broker leaves in its store directory."""

from __future__ import annotations

from rawlog.format import Deferred, Family, Format
from rawlog.formats.rocketmq import layouts, paths
from rawlog.formats.rocketmq.tables import MESSAGES
from rawlog.tables import RECORDS

_READER = "rawlog.formats.rocketmq.reader"

COMMIT_LOG = Format(
    name="rocketmq.commitlog",
    title="commit log: all messages of all topics, in order of arrival",
    files="commitlog/<20 digits>",
    layouts=(layouts.HEAD, layouts.HOST_V4, layouts.HOST_V6, layouts.STORED, layouts.TAIL, layouts.BLANK, layouts.DLEDGER),
    tables=(RECORDS, MESSAGES),
    carries=frozenset({"value", "topic", "partition"}),
    match=paths.is_commit_log,
    sniff=paths.sniff_commit_log,
    begin=paths.begin_commit_log,
    scan=Deferred(_READER, "scan"),
    decode=Deferred(_READER, "decode"),
    spans=Deferred(_READER, "spans"),
    resync=Deferred(_READER, "resync"),
    fault=Deferred(_READER, "fault"),
    context=Deferred(_READER, "context"),
)

FAMILY = Family(name="rocketmq", title="Apache RocketMQ", formats=(COMMIT_LOG,))
