"""`rawlog replay`: files into topics of a live cluster, every record acknowledged by all in-sync replicas, none of them twice.

Native partition directories at full speed are passed on as batches, with their transactions; everything else goes record by record, as
rows. What was acknowledged is kept in a checkpoint file, if one is named; the next replay looks into the topics for what came after it, so
it continues exactly.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Mapping

from rawlog.live.client import BrokerError, Disconnected
from rawlog.live.cluster import Cancelled, Cluster, interrupted_report
from rawlog.live.librdkafka import connect
from rawlog.live.partition_replay import Checkpoints, PartitionReplay
from rawlog.live.replay_options import ReplayOptions, Source
from rawlog.live.row_replay import RowReplay
from rawlog.live.sending import Sending
from rawlog.live.settings import Settings
from rawlog.live.sinks import check_topic_map
from rawlog.live.sources import LakePartition, NativePartition, is_plain
from rawlog.model.errors import RawlogError
from rawlog.model.job import Progress
from rawlog.model.report import Action, Report
from rawlog.model.text import counted, size_text

SAVE_SECONDS, PROGRESS_SECONDS = 1.0, 0.2


def replay(
    settings: Settings,
    source: Source,
    options: ReplayOptions,
    *,
    is_stopped: Callable[[], bool] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Report:
    """Send the records of a source to a cluster. Returns a Report, which is whole if every record was acknowledged.

    An error in the middle is in the Report, with what was acknowledged before it; raised is what makes a replay impossible from the start.
    """
    with connect(settings, is_stopped) as cluster:
        try:
            return _Replay(cluster, source, options, is_stopped or (lambda: False), progress).run()
        except Cancelled:
            return interrupted_report("replay", source.named, settings.named)


class _Replay:
    """One replay: targets, what was sent before, the source in its rounds, and the summary."""

    def __init__(
        self,
        cluster: Cluster,
        source: Source,
        options: ReplayOptions,
        is_stopped: Callable[[], bool],
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self.cluster, self.source, self.options, self._progress = cluster, source, options, progress
        self._whole = self._partitions()
        self._keeps = self._may_keep and self._whole is not None
        self.sending = Sending(cluster, options, is_stopped, lambda: self.checkpoints.save())
        self.producer, self.transactions = self.sending.producer, self.sending.transactions
        self.checkpoints = Checkpoints(self.sending, source.named, self._fingerprint)
        self.rows = RowReplay(self.sending, self.checkpoints, source.streams, self._now_and_then)
        self.partitions = PartitionReplay(
            self.sending, self.checkpoints, self._whole or (), keeps=self._keeps, step=self._now_and_then
        )
        self.begun = time.monotonic()
        self._saved = self._shown = self.begun

    def run(self) -> Report:
        """Replay, and say what was done."""
        try:
            return self._replay()
        finally:
            self.sending.close()
            self.checkpoints.close()

    def _replay(self) -> Report:
        error: Exception | None = None
        was_stopped = False
        if whole := [*(self.source.native or ()), *(self.source.lake or ())]:
            check_topic_map(self.options.topic_map, {partition.partition.topic for partition in whole})
        self.cluster.retry(lambda: self.cluster.metadata([]))
        lanes = [self.options.lane_of(partition.partition) for partition in self._whole or self.source.native or ()]
        for target in sorted(lanes, key=lambda lane: -lane.partition):
            # The largest first: a topic that is created gets so many.
            needed = target.partition if self.options.partition_by == "original" else 0
            self.sending.targets.need(target.topic, needed, target.partition)
        if not self.options.dry_run:
            self.producer.begin()
            self.checkpoints.resume()
        try:
            was_stopped = self._rounds()
            self.producer.flush()
        except (Cancelled, KeyboardInterrupt):
            was_stopped = True
        except RawlogError as problem:
            if not any(lane.records for lane in self.producer.lanes.values()):
                raise  # nothing was sent
            error = problem
        if error is not None or was_stopped:
            self._wind_down(error)
        try:
            self.checkpoints.save()
        except RawlogError as problem:
            error = error or problem
        return self._summary(error, was_stopped)

    def _partitions(self) -> list[NativePartition | LakePartition] | None:
        """The partitions that are passed on whole, each to a partition that gets nothing else; None if rows have to be looked at."""
        options = self.options
        if options.is_paced or not is_plain(options.selection) or options.partition_by != "original":
            return None
        partitions = [*(self.source.native or ()), *(self.source.lake or () if self._may_keep else ())]
        return (
            partitions
            if partitions and len({options.lane_of(partition.partition) for partition in partitions}) == len(partitions)
            else None
        )

    @property
    def _may_keep(self) -> bool:
        """A checkpoint counts the records of all rounds together, so it does not say where a transaction of a round began."""
        return self.options.keep_transactions and (self.options.loop == 1 or not self.options.checkpoint)

    def _rounds(self) -> bool:
        rounds = 0
        while self.options.loop == 0 or rounds < self.options.loop:
            before = self.sending.read
            self.sending.schedule.restart()
            was_stopped = self.partitions.run() if self._whole else self.rows.run()
            if was_stopped:
                return True
            rounds += 1
            if self.sending.read == before:
                break  # nothing there: a loop over nothing would never end
        return False

    def _wind_down(self, error: Exception | None) -> None:
        """After a stop or an error: what is on its way is waited for as far as the brokers answer, open transactions are aborted."""
        if self.options.dry_run or isinstance(error, Disconnected):
            return
        self.cluster.is_stopped = None
        with contextlib.suppress(RawlogError, Cancelled):
            if not isinstance(error, BrokerError):
                self.producer.flush()
            self.transactions.abort_open()

    def _now_and_then(self) -> None:
        now = time.monotonic()
        if now - self._saved >= SAVE_SECONDS:
            self._saved = now
            self.checkpoints.save(in_background=self.options.is_paced)  # a slow disk must not delay what is due
        if self._progress is not None and now - self._shown >= PROGRESS_SECONDS:
            self._shown = now
            self._progress(Progress(size=self.sending.read_bytes, rows=self.sending.read, phase=self._state(now)))

    def _state(self, now: float) -> str:
        seconds = max(now - self.begun, 1e-9)
        acknowledged = self.producer.acknowledged
        words = [
            counted(acknowledged, "record"),
            f"{acknowledged / seconds:,.0f} records/s",
            size_text(self.sending.read_bytes),
        ]
        total = self.source.size * max(self.options.loop, 1)
        if total and self.sending.read_bytes and self.options.loop:
            words.append(f"{100 * self.sending.read_bytes // total} %")
            words.append(f"{seconds * max(0, total - self.sending.read_bytes) / self.sending.read_bytes:,.0f} s left")
        return "replaying  " + "  ".join(words)

    def _fingerprint(self) -> str:
        """What a checkpoint must agree in. Where the source has transactions, replays that repeat them send other records."""
        options = self.options
        keeps = self._keeps and any(partition.has_transactions for partition in self._whole or ())
        parts = (
            self.source.named,
            sorted(options.topic_map.items()),
            options.topic,
            options.partition_by,
            repr(options.selection),
            keeps,
        )
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()

    def _summary(self, error: Exception | None, was_stopped: bool) -> Report:
        report = Report("replay", self.source.named, self.cluster.settings.named, is_dry_run=self.options.dry_run)
        seconds = time.monotonic() - self.begun
        acknowledged, left = self.producer.acknowledged, self.sending.left
        put = sum(lane.records for lane in self.producer.lanes.values())
        failed = put - acknowledged
        report.counts |= {
            "records": self.sending.read,
            "bytes": self.sending.bytes,
            "acknowledged": acknowledged,
            "failed": failed,
        }
        report.notes += self.sending.notes + self.sending.targets.notes
        committed, aborted = self.transactions.ended[True], self.transactions.ended[False]
        if self._keeps:
            report.facts["transactions"] = {"committed": committed, "aborted": aborted}
            if committed or aborted:
                report.notes.append(
                    f"{counted(committed, 'transaction')} committed, {aborted:,} aborted, as in the source"
                )
            if left.markers:
                report.notes.append(f"{left.markers:,} markers of transactions without records are left out")
        elif left.markers or left.aborted:
            report.notes.append(
                f"transactions are replayed as plain records: {left.markers:,} markers and {left.aborted:,} records of "
                f"aborted or open transactions are left out"
            )
        if self.rows.assignment.unmapped and not self._whole:
            names = ", ".join(sorted(self.rows.assignment.unmapped))
            report.notes.append(f"no record is of a topic that --topic-map gives another name: {names}")
        for text in left.damaged:
            report.add(Action.LOST, f"not sent: {text}")
        if error is not None or failed:
            where = "; ".join(
                f"{partition} has {lane.acknowledged:,} of {lane.records:,} that were sent"
                for partition, lane in sorted(self.producer.lanes.items())[:8]
            )
            report.add(
                Action.LOST,
                f"{error or 'not acknowledged'}; {acknowledged:,} records are acknowledged, nothing after them is: {where}",
            )
            report.facts["error"] = str(error)
        elif was_stopped and self.options.loop:
            report.add(Action.LOST, f"interrupted: {acknowledged:,} records are acknowledged, the rest was not sent")
            report.facts["interrupted"] = True
        report.facts |= {
            "seconds": round(seconds, 3),
            "skipped": self.sending.skipped,
            "retries": self.producer.retries,
        }
        if latencies := self.sending.latencies():
            report.facts["acknowledgement_ms"] = percentiles = latencies.summary()
            report.notes.append(f"acknowledged after {_percentiles(percentiles)}")
        if self.sending.schedule.errors:
            report.facts["pacing_error_ms"] = percentiles = self.sending.schedule.errors.summary()
            report.facts["most_in_100_ms"] = self.sending.schedule.most_in_window
            report.notes.append(f"error of the pace {_percentiles(percentiles)}")
        report.facts["throttled_ms"] = self.cluster.throttled_ms
        report.facts["end_offsets"] = {
            str(partition): lane.end_offset
            for partition, lane in sorted(self.producer.lanes.items())
            if lane.end_offset >= 0
        }
        if not self.options.dry_run:
            report.notes.append(f"{acknowledged / max(seconds, 1e-9):,.0f} records/s, {seconds:,.1f} s")
        return report


def _percentiles(percentiles: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:,.1f} ms" for name, value in percentiles.items())


__all__ = ["replay"]
