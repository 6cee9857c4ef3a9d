"""What verification looks for in a partition as a whole: its segments in order, and every file beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rawlog.core.findings import Mark, Rule, Severity, rule
from rawlog.core.format import File
from rawlog.formats.kafka import checks_internal
from rawlog.formats.kafka.store.survey import survey

Files = Sequence[File]


@rule("kafka.partition.overlap", Severity.ERROR)
def overlap(files: Files) -> Iterator[Mark]:
    """A segment begins at or before the last offset of the one in front of it: some offsets are there twice.

    A broker never leaves that. Segments of two replicas, or of before and after a restore, were put together.
    """
    yield from survey(files).get("overlap", ())


@rule("kafka.partition.gap", Severity.WARNING)
def gap(files: Files) -> Iterator[Mark]:
    """Offsets are missing between two segments, and compaction does not explain it: a segment, or the end of one, is gone. Or they are
    missing at the end of the log, although a snapshot of the producers was taken after them and no unfinished batch is there.

    Compaction explains a gap if `cleaner-offset-checkpoint` or the topic's settings say that the topic is compacted, or if batches show it.
    Look for the records in a backup or on another replica. Consumers skip the gap without an error.
    """
    yield from survey(files).get("gap", ())


@rule("kafka.partition.displaced", Severity.ERROR)
def displaced(files: Files) -> Iterator[Mark]:
    """A batch whose checksum is right is not where its offsets belong: they exist already, or are outside of the range of its segment, or
    its base offset, which no checksum covers, does not fit between those of the batches around it.

    `rawlog repair` gives a batch its base offset back where the batches around it leave room for exactly one, puts others where their
    offsets are missing, and drops those whose offsets exist already.
    """
    yield from survey(files).get("displaced", ())


@rule("kafka.partition.truncated", Severity.WARNING)
def truncated(files: Files) -> Iterator[Mark]:
    """A segment ends inside a batch, or in zeros, although another segment follows it: the end of the segment is lost.

    A broker finishes a segment before it begins the next, and preallocates only the one that it appends to. If it has to recover the log,
    it deletes every later segment. `rawlog repair` keeps them.
    """
    yield from survey(files).get("truncated", ())


@rule("kafka.index.mismatch", Severity.ERROR)
def index_mismatch(files: Files) -> Iterator[Mark]:
    """An entry of the offset index does not point at the batch it names.

    After a clean stop a broker trusts the index: records cannot be found, or the end of the log is taken for its beginning.
    Delete the file, or `rebuild`.
    """
    yield from survey(files).get("index", ())


@rule("kafka.timeindex.mismatch", Severity.ERROR)
def timeindex_mismatch(files: Files) -> Iterator[Mark]:
    """An entry of the time index names a time that the batch at its offset does not have.

    Look-ups by time begin in the wrong place, and retention by time keeps or deletes the segment wrongly.
    """
    yield from survey(files).get("timeindex", ())


@rule("kafka.txnindex.mismatch", Severity.ERROR)
def txnindex_mismatch(files: Files) -> Iterator[Mark]:
    """The transaction index and the markers in the log disagree on what was aborted.

    read_committed consumers are given aborted records, or lose committed ones. `rebuild` writes it anew from the log.
    """
    yield from survey(files).get("txnindex", ())


@rule("kafka.snapshot.mismatch", Severity.WARNING)
def snapshot_mismatch(files: Files) -> Iterator[Mark]:
    """A snapshot of producer state is older than the log up to its offset.

    A broker that starts from it may take a duplicate for new. Delete the file: the broker replays the log instead.
    """
    yield from survey(files).get("snapshot", ())


@rule("kafka.epochs.mismatch", Severity.WARNING)
def epochs_mismatch(files: Files) -> Iterator[Mark]:
    """A batch's leader epoch is not the one that the leader epoch checkpoint has for its offset; or it is higher than those of later
    batches, or negative, although leader epochs never fall.

    Followers use the checkpoint to find where they diverge, and may truncate too much or too little.
    """
    yield from survey(files).get("epochs", ())


@rule("kafka.log.producer-epoch", Severity.WARNING)
def producer_epoch(files: Files) -> Iterator[Mark]:
    """A producer's epoch goes back: a producer that had been fenced off could still write."""
    yield from survey(files).get("epoch", ())


@rule("kafka.log.sequence", Severity.WARNING)
def sequence(files: Files) -> Iterator[Mark]:
    """The sequence numbers of an idempotent producer do not follow one another: batches are missing, doubled or out of order.

    Leaders refuse that, so bytes were lost or copied after they were written. (Compacted logs are not looked at.)
    """
    yield from survey(files).get("sequence", ())


@rule("kafka.log.hanging-transaction", Severity.INFO)
def hanging_transaction(files: Files) -> Iterator[Mark]:
    """A transaction has no marker. That is normal while it goes on; long after, it holds back every read_committed consumer of
    the partition at its first offset.

    If the producer is gone, abort it with Kafka's own transaction tool.
    """
    yield from survey(files).get("hanging-transaction", ())


def rules() -> Sequence[Rule[Files]]:
    """The rules of this module, as its format names them."""
    return (
        overlap,
        gap,
        displaced,
        truncated,
        index_mismatch,
        timeindex_mismatch,
        txnindex_mismatch,
        snapshot_mismatch,
        epochs_mismatch,
        producer_epoch,
        sequence,
        hanging_transaction,
        *checks_internal.rules(),
    )
