"""Rows: a table of a tree, or of one of its parts, read as a stream of Arrow batches."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from rawlog import registry
from rawlog.io.walk import walk
from rawlog.kernels.columns import constant
from rawlog.model.errors import DataError, OptionError, RawlogError, UnknownFormatError
from rawlog.model.finding import Findings
from rawlog.model.format import ExpectedGaps, File, Format, Offsets, Spans, Want
from rawlog.model.frames import Frames
from rawlog.model.report import SeriousNote
from rawlog.model.status import Status
from rawlog.model.table import RECORDS, Table
from rawlog.model.text import ROWS as SHOWN
from rawlog.model.text import counted, html_note, html_table, missing_topics, offset_range
from rawlog.reading.parts import ALL_TOGETHER, TOGETHER, Part, is_log, plan, reads_itself, whole
from rawlog.reading.select import Selection, Transform, limit_rows, partition_column, partition_columns
from rawlog.reading.tree import Tree

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from rawlog.model.outline import Reading
    from rawlog.reading.settlement import StoreFold


Note = Callable[[str], None]
Seen = Callable[[Frames], None]
#: So many beginnings of frames inside a damaged one are followed.
MOST_TRIES = 100
#: So many ranges of offsets that are missing in a file are named.
MOST_GAPS = 5
#: Columns of `records` that the place of a file may tell, and so many rows of them at a time.
_PLACED, PLACED_ROWS = {"topic", "partition"}, 1 << 18


class Loss(SeriousNote):
    """A note that damage took rows away (an unfinished last frame is only a note)."""

    __slots__ = ()


class MisplacedNote(SeriousNote):
    """A note that rows are not at their place: their offsets do not rise, or belong into another file."""

    __slots__ = ()


class GapNote(SeriousNote):
    """A note that offsets are missing inside a file, or between it and the one that follows. Only a `Listener` gets it."""

    __slots__ = ("file", "first", "place", "stop")
    file: File
    first: int
    stop: int
    place: str

    @classmethod
    def between(cls, file: File, first: int, stop: int) -> Self:
        """The note on offsets from `first` to before `stop` that are missing after a file."""
        return cls._at(file, first, stop, "between this file and the one that follows")

    @classmethod
    def inside(cls, file: File, first: int, stop: int) -> Self:
        """The note on offsets from `first` to before `stop`, some of which are missing in a file."""
        return cls._at(file, first, stop, "inside this file")

    @classmethod
    def _at(cls, file: File, first: int, stop: int, place: str) -> Self:
        missing = offset_range(first, stop)
        if not registry.formats()[str(file.format)].ordered:
            missing = f"physical {missing}"
        gap = cls(f"{file.path}: {missing} missing {place}")
        gap.file, gap.first, gap.stop, gap.place = file, first, stop, place
        return gap

    def part(self, first: int, stop: int) -> Self:
        """The note on some of the offsets."""
        return self._at(self.file, first, stop, self.place)


class Listener:
    """Passes notes on. Of a gap it first asks, by all files of the group, which offsets are lost, and names each range of these once."""

    def __init__(self, tree: Tree, note: Note) -> None:
        self.tree, self.note = tree, note
        #: The ranges that were named, each with its group; the groups in which compaction was at work; and which gaps say nothing.
        self.named: set[tuple[str, int, int]] = set()
        self.compacted: set[str] = set()
        self.expected: dict[str, ExpectedGaps] = {}

    def __call__(self, text: str) -> None:
        if not isinstance(text, GapNote):
            self.note(text)
            return
        format = registry.formats()[str(text.file.format)]
        if not format.can("lost_offsets"):
            return
        key = text.file.place.group or text.file.path
        lost = format.codec.lost_offsets(self.tree.group_of(text.file), text.first, text.stop)
        unnamed = [span for span in lost if (key, *span) not in self.named]
        for first, stop in unnamed[:MOST_GAPS]:
            self.named.add((key, first, stop))
            self.note(text.part(first, stop))
        if len(unnamed) > MOST_GAPS:
            rest = counted(len(unnamed) - MOST_GAPS, "more range")
            self.note(Loss(f"{text.file.path}: {rest} of offsets missing {text.place}"))

    def unexpected(self, file: File, first: NDArray[np.int64], stop: NDArray[np.int64], *, is_numbered: bool) -> Any:
        """Which of the gaps from `first` to before `stop` between the frames of a file may be losses, by what other files say."""
        key, format = file.place.group or file.path, registry.formats()[str(file.format)]
        if not format.can("expected_gaps"):
            return np.zeros(first.size, np.bool_)
        if key not in self.expected:
            self.expected[key] = format.codec.expected_gaps(self.tree.group_of(file))
        end, named = self.expected[key]
        may_be_lost = stop > end
        if named is not None and not is_numbered:
            may_be_lost &= np.searchsorted(named, first) < np.searchsorted(named, stop)
        return may_be_lost

    def file_read(self, file: File, end: int) -> None:
        """Note what the other files of the group say about a file whose frames end at a position."""
        format = registry.formats()[str(file.format)]
        if not format.can("contradicted"):
            return
        for text in format.codec.contradicted(self.tree.group_of(file), file, end):
            self.note(MisplacedNote(f"{file.path}: {text}"))


def _findings(part: Part) -> Findings:
    """What the rules say of one file, of a group, or of everything together."""
    from rawlog.reading.inspect import inspect_file, inspect_group, inspect_tree

    if part.context == TOGETHER:
        return inspect_group(part.files)
    if part.context == ALL_TOGETHER:
        return inspect_tree(Tree((), part.files))
    return inspect_file(part.file)


def read(
    part: Part, table: Table, selection: Selection, note: Note | None = None, seen: Seen | None = None
) -> Iterator[pa.RecordBatch]:
    """The wanted rows of one part. Raises DataError at damage, unless the selection says to stop or skip.

    `note` gets a sentence on what was left out: an unfinished last frame, a skipped range. `seen` is shown every window
    of frames before its rows come, so that a caller knows how far the part was read.
    """
    selection = selection.suited(table)
    if table.name == "files":
        from rawlog.reading.inspect import file_rows, file_values

        row = file_rows([file_values(part.file)])
        yield selection.apply(row.select(list(selection.needed(table).names)), table)
        return
    if table.name == "findings":
        batches = _findings(part).to_arrow().to_batches()
        yield from (selection.apply(batch.select(list(selection.needed(table).names)), table) for batch in batches)
        return
    family = registry.maker(table)
    if family is not None and not reads_itself(part.file, table):
        wanted = {"isolation": selection.isolation, "errors": selection.errors, **selection.options}
        if note is not None and selection.errors != "raise":
            _tell_losses(part, selection, note)
        for batch in family.store_class(part.files).rows_of(table.name, wanted):
            yield selection.apply(batch.select(list(selection.needed(table).names)), table)
        return
    if part.reading is not None:
        yield from _settled_rows(part, table, selection, note, seen)
        return
    if seen is None and table is RECORDS and _is_placed(part, selection):
        yield from _placed_rows(part, table, selection, note)
        return
    decoder = Decoder(part, table, selection, note)
    for frames in _sound_frames(part, decoder.format, decoder.selection, note, seen):
        yield from decoder.rows_of(frames)


def _settled_rows(
    part: Part, table: Table, selection: Selection, note: Note | None, seen: Seen | None
) -> Iterator[pa.RecordBatch]:
    """The wanted rows of a store in the pieces that its diagnosis keeps."""
    from rawlog.reading.settlement import settled_frames

    decoders: dict[str, Decoder] = {}
    for file, frames in settled_frames(part):
        if file.path not in decoders:
            decoders[file.path] = Decoder(whole(file, part.files, table, selection), table, selection, note)
        if seen is not None:
            seen(frames)
        yield from decoders[file.path].see(frames)


def _is_placed(part: Part, selection: Selection) -> bool:
    """Whether the place of a file tells all that is wanted of its rows but their number."""
    place = part.file.place
    named = place.topic is not None and place.partition is not None and set(selection.columns or "-") <= _PLACED
    return named and selection.takes_all_of(part.file) and selection.isolation == "read_uncommitted"


def _placed_rows(part: Part, table: Table, selection: Selection, note: Note | None) -> Iterator[pa.RecordBatch]:
    """Rows of which only topic and partition are wanted: frames tell their number, and nothing is decompressed."""
    import pyarrow as pa

    wanted, place = selection.wanted(table), part.file.place
    values = {"topic": place.topic, "partition": place.partition}
    for count in _counts(part, table, selection, note):
        while count > 0:
            rows, count = min(count, PLACED_ROWS), count - PLACED_ROWS
            arrays = [constant(values[column.name], column.type, rows) for column in wanted.columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=wanted.schema)


class Decoder:
    """Turns windows of a part's frames into rows of a table. Several may see the same windows, each for its own table: `decode_streams`."""

    def __init__(
        self, part: Part, table: Table, selection: Selection, note: Note | None = None, *, compact: bool = False
    ) -> None:
        """`compact`: a text that is the same in every row may come as a dictionary column, where no row is tested for it."""
        if part.floor is not None:
            selection = selection.replace(from_offset=max(part.floor, selection.from_offset or 0))
        self.part, self.table, self.selection, self.note = part, table, selection, note
        self.format = registry.formats()[str(part.file.format)]
        want = _want(selection.needed(table, part.file.system), part.file, selection, part.facts())
        tested = (selection.where, selection.key, selection.id)
        self.want = replace(want, compact=compact and all(column is None for column in tested))

    def see(self, frames: Frames) -> Iterator[pa.RecordBatch]:
        """The wanted rows of a window."""
        for run in _prune(frames, self.format, self.part.file, self.selection):
            yield from self.rows_of(run)

    def rows_of(self, frames: Frames) -> Iterator[pa.RecordBatch]:
        """The wanted rows of frames that may hold such."""
        for run, wanted in _by_id(frames, self.part.file, self.table, self.selection):
            for batch in _decode(self.format, run, self.want, self.selection, self.note):
                chosen = wanted.apply(batch, self.table, self.part.file.system)
                if chosen.num_rows:
                    yield chosen

    def takes_whole(self, frames: Frames) -> bool:
        """Whether no frame of a window can be left out."""
        if self.selection.id is not None:
            return False
        return [len(run) for run in _prune(frames, self.format, self.part.file, self.selection)] == [len(frames)]


def decode_streams(decoders: Sequence[Decoder], frames: Frames) -> list[Iterator[pa.RecordBatch]]:
    """The wanted rows of a window for each of several decoders of one part.

    Tables with the same message bytes are decoded in one pass where the format can do that; their streams should be read in step. A
    stream raises what its table alone would raise.
    """
    together = [decoder for decoder in decoders if decoder.table is RECORDS or decoder.table.payload]
    if len(together) < 2 or not decoders[0].format.can("decode_together"):
        together = []
    shared = _Pass(together, frames) if together and all(decoder.takes_whole(frames) for decoder in together) else None
    return [shared.rows_of(decoder) if shared and decoder in together else decoder.see(frames) for decoder in decoders]


class _Pass:
    """One decoding of a window for several tables. Each has a queue of batches that others made it produce."""

    def __init__(self, decoders: Sequence[Decoder], frames: Frames) -> None:
        self.decoders, self.frames = decoders, frames
        self.queues: dict[Decoder, deque[pa.RecordBatch]] = {decoder: deque() for decoder in decoders}
        format = decoders[0].format
        self.steps = iter(format.codec.decode_together(frames, [decoder.want for decoder in decoders]))
        self.done = 0

    def rows_of(self, decoder: Decoder) -> Iterator[pa.RecordBatch]:
        """The rows of one table; of frames that the common decoding left, as the table alone is decoded."""
        queue = self.queues[decoder]
        while queue or self._advance():
            if queue:
                yield queue.popleft()
        if self.done < len(self.frames):
            yield from decoder.rows_of(self.frames.slice(self.done, len(self.frames)))

    def _advance(self) -> bool:
        """Decode some more frames; False at the end."""
        count, batches = next(self.steps, (-1, ()))
        if count < 0:
            return False
        self.done += count
        for decoder, batch in zip(self.decoders, batches, strict=False):
            chosen = decoder.selection.apply(batch, decoder.table, decoder.part.file.system)
            if chosen.num_rows:
                self.queues[decoder].append(chosen)
        return True


def _by_id(frames: Frames, file: File, table: Table, selection: Selection) -> Iterator[tuple[Frames, Selection]]:
    """Runs of frames, each with the selection for its rows: where a frame itself has the id asked for, all of them are wanted."""
    lookup = registry.lookup(table, file.system) if selection.id is not None else None
    mask = lookup.frames(frames, file, str(selection.id)) if lookup is not None and lookup.frames is not None else None
    if mask is None or not mask.any():
        yield frames, selection
        return
    edges = [0, *(np.flatnonzero(np.diff(mask)) + 1).tolist(), len(frames)]
    for start, stop in pairwise(edges):
        yield frames.slice(start, stop), selection.replace(id=None) if mask[start] else selection


def _want(table: Table, file: File, selection: Selection, context: object) -> Want:
    return Want(table, file, selection.max_decompressed, context, selection.options, selection.max_headers)


def _tell_losses(part: Part, selection: Selection, note: Note) -> None:
    """A fold passes over what it cannot read and says nothing: its files are read once more for what that was."""
    limits = {"max_decompressed": selection.max_decompressed, "max_headers": selection.max_headers}
    reading = Selection(errors=selection.errors, options=selection.options, **limits)  # type: ignore[arg-type]
    for file in part.files:
        format = registry.formats()[str(file.format)]
        if format.can("scan") and format.can("decode"):
            want = _want(reading.needed(format.tables[0]), file, reading, None)
            with contextlib.suppress(_Stop):
                for frames in _sound_frames(Part((file,)), format, reading, note):
                    sum(batch.num_rows for batch in _decode(format, frames, want, reading, note))


def _sound_frames(
    part: Part, format: Format, selection: Selection, note: Note | None, seen: Seen | None = None
) -> Iterator[Frames]:
    """The frames of a part that may hold wanted rows, with a note on everything passed over."""
    with contextlib.closing(Order(part, format, note)) as order:
        yield from _walked_frames(part, format, selection, note, seen, order)


class Order:
    """Looks for frames of a part that are not at their place: offsets do not rise, or belong into another file. One note names them. It
    also looks for offsets that are missing between frames.
    """

    def __init__(self, part: Part, format: Format, note: Note | None) -> None:
        self.part, self.note = part, note
        looks = note is not None
        self.offsets = format.codec.offsets if looks and format.can("offsets") else None
        self.misplaced = format.codec.misplaced if looks and format.can("misplaced") else None
        self.count, self.first = 0, -1
        #: Where the frames before end, and their offsets.
        self.position, self.end = part.start or 0, None if part.start else part.file.place.start_offset
        self.is_begun = False
        #: Where the gaps between frames that may be losses begin and end; and whether frames show compaction.
        self.missing: tuple[int, int] | None = None
        self.is_compacted = False

    def see(self, frames: Frames) -> None:
        """Look at a window."""
        wrong = np.empty(0, np.int64)
        if self.offsets is not None and len(frames):
            offsets = self.offsets(frames, self.part.file)
            wrong = frames.positions[self._wrong(offsets)]
            # What is missing between frames with damage between them was named as damage.
            ends = np.concatenate(([self.position - frames.base], frames.stops[:-1]))
            self.follow(offsets, frames.starts == ends)
            self.position = frames.reached_in_file
        if self.misplaced is not None:
            wrong = np.union1d(wrong, self.misplaced(frames, self.part.file))
        self._add(wrong)
        if frames.last:
            self.note_missing()
        if frames.last and frames.status is Status.OK and frames.reached_in_file >= self.part.file.size:
            self._end()
        if frames.last and self.part.stop in (None, self.part.file.size) and isinstance(self.note, Listener):
            end = frames.reached_in_file if frames.status.is_damage else self.part.file.size
            self.note.file_read(self.part.file, end)

    def _end(self) -> None:
        """Note what is missing before the next file."""
        following = self.part.following
        if following is None or self.end is None or self.end >= following or self.count:
            return
        if isinstance(self.note, Listener):
            self.note(GapNote.between(self.part.file, self.end, following))

    def _wrong(self, offsets: Offsets) -> NDArray[np.bool_]:
        """Which frames do not go on after the one before, are outside of what the names of files say, or end after the largest offset."""
        first, stop = offsets.first, offsets.stop
        wrong: NDArray[np.bool_] = (first < self._ends(offsets)) | (first < (self.part.file.place.start_offset or 0))
        wrong |= stop < first
        return wrong if self.part.following is None else wrong | (stop > self.part.following)

    def _ends(self, offsets: Offsets) -> NDArray[np.int64]:
        """Where the offsets of the frame before each end. A file may begin after the offset in its name."""
        before = self.end if self.is_begun and self.end is not None else int(offsets.first[0])
        return np.concatenate((np.array([before], np.int64), offsets.stop[:-1]))

    def follow(self, offsets: Offsets, is_next: NDArray[np.bool_] | None = None) -> None:
        """Take in the offsets of a window; `is_next` says which frames begin where the one before ends."""
        ends = self._ends(offsets)
        leaves_out = offsets.first > ends
        gaps = np.flatnonzero(leaves_out if is_next is None else leaves_out & is_next)
        if gaps.size and isinstance(self.note, Listener):
            starts, stops, is_numbered = ends[gaps], offsets.first[gaps], offsets.is_numbered
            unexpected = self.note.unexpected(self.part.file, starts, stops, is_numbered=is_numbered)
            if unexpected.any():
                low, high = self.missing or (int(stops[-1]), 0)
                self.missing = min(low, int(starts[unexpected].min())), max(high, int(stops[unexpected].max()))
        self.is_compacted |= offsets.is_compacted
        self.end, self.is_begun = int(offsets.stop[-1]), True

    def note_missing(self) -> None:
        """Note what is missing between frames, unless compaction explains it. Frames that are not at their place leave out offsets, too."""
        if not isinstance(self.note, Listener):
            return
        group = self.part.file.place.group or self.part.file.path
        if self.is_compacted:
            self.note.compacted.add(group)
        if self.missing is not None and not self.count and group not in self.note.compacted:
            self.note(GapNote.inside(self.part.file, *self.missing))
        self.missing = None

    def _add(self, positions: NDArray[np.int64]) -> None:
        if positions.size:
            self.first = self.first if self.count else int(positions[0])
            self.count += int(positions.size)

    def close(self) -> None:
        if self.count and self.note is not None:
            where = f"{self.part.file.path}: byte {self.first:,}"
            what = f"from here on {counted(self.count, 'frame')} {'is' if self.count == 1 else 'are'} not at the right place"
            self.note(MisplacedNote(f"{where}: {what}: offsets do not rise, or belong to another file or partition"))


def _walked_frames(
    part: Part, format: Format, selection: Selection, note: Note | None, seen: Seen | None, order: Order
) -> Iterator[Frames]:
    reached: int | None = None
    say = note or (lambda text: None)
    for frames in walk(part.file, format, start=part.start, stop=part.stop, first=part.first, errors=selection.errors):
        if reached is not None and frames.base > reached:
            say(skipped(part.file, reached, frames.base))
        if seen is not None:
            seen(frames)
        order.see(frames)
        yield from _prune(frames, format, part.file, selection)
        reached = frames.reached_in_file
        if format.ordered and seen is None and is_past(frames, format, part.file, selection.to_offset):
            order.note_missing()
            return
        if frames.last and frames.status is Status.TRUNCATED:
            left = (part.file.size if part.stop is None else part.stop) - reached
            say(unfinished(part.file, reached, left, is_followed=part.is_followed))
        elif frames.last and frames.status.is_damage and selection.errors != "raise":
            say(damaged_end(part, frames, selection.errors))


def unfinished(file: File, position: int, size: int, *, is_followed: bool) -> str:
    """The note on an unfinished frame at the end of a file. It counts if another file follows: nobody will finish it."""
    text = f"{file.path}: byte {position:,}: the last {size:,} bytes are an unfinished frame"
    return Loss(f"{text}, although another file follows") if is_followed else text


def skipped(file: File, position: int, stop: int) -> Loss:
    """The note on damaged bytes that were passed over."""
    return Loss(f"{file.path}: byte {position:,}: {stop - position:,} damaged bytes skipped")


def damaged_end(part: Part, frames: Frames, errors: str) -> str:
    """The note on damage that no sound frame follows. At the end of a log that was searched to its end it is what a crash leaves, as an
    unfinished frame is, unless the bytes cannot be had, or the file has nothing else.
    """
    text = f"{part.file.path}: byte {frames.reached_in_file:,}: damaged; nothing is read from there on"
    is_searched = errors == "skip" and is_log(part.file) and not part.is_followed and frames.error is None
    return text if is_searched and frames.reached_in_file > 0 else Loss(text)


def is_past(frames: Frames, format: Format, file: File, stop: int | None) -> bool:
    """Whether nothing that comes after these frames can lie before an offset. Only asked where offsets rise."""
    if stop is None or not format.can("spans") or not len(frames):
        return False
    with contextlib.suppress(DataError):
        # Where the last begins is known by where the one before it ends.
        starts = format.codec.spans(frames.slice(max(len(frames) - 2, 0), len(frames)), file).start_offset
        return starts is not None and int(starts[-1]) >= stop
    return False


def _prune(frames: Frames, format: Format, file: File, selection: Selection) -> Iterator[Frames]:
    """Runs of frames that may hold wanted rows."""
    if not format.can("spans") or selection.takes_every_row or not len(frames):
        if len(frames):
            yield frames
        return
    try:
        mask = selection.takes_frames(format.codec.spans(frames, file))
    except DataError:  # decoding meets it again, gives the rows in front of it, and treats it as the selection says
        mask = None
    if mask is None or mask.all():
        yield frames
        return
    edges = np.flatnonzero(np.diff(np.concatenate(([0], mask.astype(np.int8), [0]))))
    for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        yield frames.slice(start, stop)


def _decode(
    format: Format, frames: Frames, want: Want, selection: Selection, note: Note | None
) -> Iterator[pa.RecordBatch]:
    """Decode frames; a frame that cannot be is an error, the end, or passed over, as the selection says.

    After a frame that was passed over the next ones are tried few at a time, so that a long stretch of bad ones takes no longer than it is.
    """
    passed, step = _Passed(note), len(frames)
    while len(frames):
        first = frames.slice(0, step)
        try:
            yield from format.codec.decode(first, want)
            frames, step = frames.slice(len(first), len(frames)), 2 * step
        except DataError as error:
            error.at(path=want.file.path, format=format.name)
            if selection.errors == "raise" or error.position is None:
                raise
            if selection.errors == "stop":
                passed.end()
                if note is not None:
                    note(Loss(f"{error}".splitlines()[0] + "; stopped"))
                raise _Stop from None
            bad = max(int(np.searchsorted(frames.starts, error.position - frames.base, side="right")) - 1, 0)
            passed.add(error, frames, bad)
            if (hidden := _find_hidden(format, frames, bad, want.file)) is not None:
                yield from format.codec.decode(hidden, want)
            frames, step = frames.slice(bad + 1, len(frames)), 1
    passed.end()


class _Passed:
    """Frames that were passed over; those next to each other are one note."""

    def __init__(self, note: Note | None) -> None:
        self.note = note
        self.first, self.more, self.last, self.stop = "", 0, 0, -1

    def add(self, error: DataError, frames: Frames, bad: int) -> None:
        """One more; what came before it is noted unless it is next to it."""
        start = frames.base + int(frames.starts[bad])
        if start == self.stop:
            self.more, self.last = self.more + 1, start
        else:
            self.end()
            self.first = f"{error}".splitlines()[0] + "; skipped"
        self.stop = frames.base + int(frames.stops[bad])

    def end(self) -> None:
        """Note what is not noted yet."""
        if self.note is not None and self.first:
            more = f", and {counted(self.more, 'frame')} after it up to byte {self.last:,}" if self.more else ""
            self.note(Loss(self.first + more))
        self.first, self.more, self.stop = "", 0, -1


def _find_hidden(format: Format, frames: Frames, bad: int, file: File) -> Frames | None:
    """The sound frames that a damaged one hides because bytes of it are missing.

    They must reach to the very end of the damaged one, and their checksums must be right: its content may be a copy of such a file.
    """
    if not format.can("scan") or not format.can("resync") or not format.can("spans"):
        return None
    start, stop = int(frames.starts[bad]), int(frames.stops[bad])
    inside, at = frames.data[start:stop], 0
    for _ in range(MOST_TRIES):
        at = format.codec.resync(inside, at + 1, frames.kind)
        if at < 0:
            return None
        hidden = format.codec.scan(inside[at:], frames.kind)
        if len(hidden) and hidden.reached == inside.size - at:
            hidden = replace(hidden, base=frames.base + start + at, first=frames.first + bad)
            with contextlib.suppress(DataError):
                format.codec.spans(hidden, file)
                return hidden
    return None


class _Stop(Exception):
    """Reading ends here, as asked."""


def read_all(
    parts: Iterable[tuple[Part, Selection]], table: Table, note: Note | None = None, seen: Seen | None = None
) -> Iterator[pa.RecordBatch]:
    """The wanted rows of parts one after another, each under its own selection; as `read`, but damage that a selection says to stop at
    ends its part only.
    """
    for part, selection in parts:
        with contextlib.suppress(_Stop):
            yield from read(part, table, selection, note, seen)


def _is_internal(part: Part) -> bool:
    """Whether a part has rows of a topic that the system makes for itself."""
    place = part.file.place
    if place.topic is None or part.file.system is None:
        return False
    return registry.family(part.file.system).store_class.is_internal(place.topic)


class Rows:
    """A table of a tree, read as a stream: iterate over it for rows as dicts, or use `batches()` or `to_arrow()`.

    It is also an Arrow stream, which Polars, DuckDB and pyarrow take as it is.
    """

    #: Where an iterator was made that has not given a row yet.
    _begun_at: tuple[int, int] | None = None

    def __init__(self, tree: Tree, table: str | Table = RECORDS, selection: Selection | None = None) -> None:
        """OptionError for an unknown table or column; UnknownFormatError if no file of the tree has that table."""
        self.tree = tree
        self.table = registry.table_named(table) if isinstance(table, str) else table
        self.selection = (selection or Selection()).suited(self.table)
        self.selection.check(self.table)
        self.note: Note | None = None
        #: Whether topics of users come before those that the system makes for itself.
        self.users_first = False
        #: What makes the summaries of stores while their rows are read; and the stores that are read in pieces, by directory.
        self.fold: StoreFold | None = None
        self.readings: Mapping[str, Reading] = {}
        if not tree.has(self.table):
            has = ", ".join(tree.tables)
            where = ", ".join(tree.roots)
            raise UnknownFormatError(f"{where}: nothing here can be read as {self.table.name}; this can: {has}")

    @property
    def schema(self) -> pa.Schema:
        return self.selection.wanted(self.table).schema

    @property
    def say(self) -> Note | None:
        """What gets the notes of reading; None if nobody listens."""
        return None if self.note is None else Listener(self.tree, self.note)

    def parts(self, split_size: int | None = None) -> list[Part]:
        selection = self._resolve()
        return plan(self.tree, self.table, selection, split_size=split_size)

    def _resolve(self) -> Selection:
        return self.selection

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, a batch at a time; memory stays bounded. Raises DataError at damage unless `errors` says otherwise."""
        if self.selection.limit == 0:
            return
        changes = self.selection.begun().transforms
        # Where a limit cuts rows off, those after it are not changed, and what is noted is about rows that are given.
        late = self.selection.replace(transforms=changes)
        is_late = self.selection.limit is not None and bool(changes) and not late.tests_changes
        parts = self.part_selections()
        if self.readings:
            from rawlog.reading.settlement import settled_parts

            parts = settled_parts(parts, self.readings, self.tree)
        seen = None if self.fold is None else self.fold.see
        parts = ((part, self._reading(part, chosen, changes, is_late)) for part, chosen in parts)
        parts = parts if self.fold is None else self.fold.watch(parts)
        for batch in limit_rows(read_all(parts, self.table, self.say, seen), self.selection.limit):
            yield late.changed(batch, self.table) if is_late else batch
        self.judge(changes)

    def _reading(self, part: Part, chosen: Selection, changes: Sequence[Transform], is_late: bool) -> Selection:
        """What is read of a part: rows as transforms change them, or those that they are to change later."""
        if not changes:
            return chosen
        changing = chosen.replace(transforms=tuple(changes))
        if not is_late:
            return changing
        return chosen.replace(transforms=(), columns=changing.needed(self.table, part.file.system).names)

    def judge(self, changes: Sequence[Transform]) -> None:
        """Note what transforms have to say about the rows."""
        for text in self.selection.judge([tuple(change.counts for change in changes)]) if changes else ():
            if self.note is not None:
                self.note(text)

    def part_selections(self) -> Iterator[tuple[Part, Selection]]:
        """The parts in order; `last` is resolved into a first offset for each group, or for each partition of files that hold many."""
        if self.selection.last is None:
            parts = plan(self.tree, self.table, self.selection)
            if self.users_first and "topic" in self.table.names:
                parts = sorted(parts, key=_is_internal)
            for part in parts:
                yield part, self.selection
            return
        firsts, starts = self._firsts(self.selection.last), None
        for part in plan(self.tree, self.table, self.selection.replace(last=None)):
            key = part.file.place.group or part.file.path
            if key not in firsts and part.file.place.topic is None and "topic" in self.table.names:
                starts = self._starts() if starts is None else starts
                yield part, self.selection.replace(last=None, starts=starts)
                continue
            yield part, self.selection.replace(last=None, from_offset=firsts.get(key, 0))

    def _starts(self) -> tuple[tuple[str, int, int], ...]:
        """The first wanted offset of each partition, by the offsets of all rows: for files that only their rows tell the partition of."""
        import pyarrow as pa

        chosen, (_, high) = self.selection, self.table.offsets or ("", "")
        all_rows = Selection(
            chosen.topics, chosen.topic_pattern, chosen.partitions, isolation=chosen.isolation, errors=chosen.errors
        )
        names = (*partition_columns(self.table), high)
        ends: dict[tuple[str, int], int] = {}
        for batch in Rows(self.tree, self.table, all_rows.replace(columns=names, options=chosen.options)).batches():
            table = pa.Table.from_batches([batch]).drop_null()
            for row in table.group_by(list(names[:2])).aggregate([(high, "max")]).to_pylist():
                queue = (row[names[0]], row[names[1]])
                ends[queue] = max(ends.get(queue, 0), row[f"{high}_max"] + 1)
        return tuple((topic, number, end - (chosen.last or 0)) for (topic, number), end in ends.items())

    def _firsts(self, last: int) -> dict[str, int]:
        """The first of the `last` offsets of each group of files that this table reads."""
        ends: dict[str, int] = {}
        newest: dict[str, list[int]] = {}
        for part in plan(self.tree, self.table, self.selection.replace(last=None)):
            key = part.file.place.group or part.file.path
            for file in part.files:
                format = registry.formats()[str(file.format)]
                if not format.can("spans") or file.place.state is not None:
                    continue
                errors = self.selection.errors
                with contextlib.suppress(_Stop):
                    for frames in walk(file, format, start=part.start, errors="skip" if errors == "skip" else "stop"):
                        for spans in _sound_spans(frames, format, file, errors):
                            if spans.stop_offset is not None:
                                ends[key] = max(ends.get(key, 0), int(spans.stop_offset.max()))
                            if format.by_position and spans.start_offset is not None and last:
                                newest[key] = sorted(newest.get(key, []) + spans.start_offset[-last:].tolist())[-last:]
        firsts = {key: max(0, end - last) for key, end in ends.items()}
        return firsts | {key: positions[0] for key, positions in newest.items()}

    def count(self) -> int:
        """The number of rows; without decoding where the frames' own headers tell it."""
        if self.table.name != "records" or not self.selection.takes_every_row:
            counting = Rows(self.tree, self.table, self.selection.replace(columns=self._narrow()))
            counting.note = self.note
            return sum(batch.num_rows for batch in counting.batches())
        total = 0
        limit = self.selection.limit
        for part in plan(self.tree, self.table, self.selection):
            total += count_part(part, self.table, self.selection, self.say)
            if limit is not None and total >= limit:
                return limit
        return total

    def _narrow(self) -> tuple[str, ...]:
        fixed = [column.name for column in self.table.columns if column.type in ("bigint", "int")]
        return (fixed[0] if fixed else self.table.names[0],)

    def to_arrow(self) -> pa.Table:
        """All rows in memory."""
        import pyarrow as pa

        from rawlog.kernels.columns import keeping_marks

        batches = list(self.batches())
        return pa.Table.from_batches(batches, schema=keeping_marks(self.schema, batches))

    def to_pandas(self) -> Any:
        """All rows as a pandas DataFrame. ModuleNotFoundError without pandas."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """All rows as a Polars DataFrame. ModuleNotFoundError without Polars."""
        import polars

        return polars.from_arrow(self.to_arrow())

    def __len__(self) -> int:
        """The number of rows; all of them are counted for it."""
        if (
            self._begun_at == _caller()
        ):  # `list(rows)` asks after it made an iterator: it must not read everything twice
            raise TypeError("list() does without the number of rows")
        note, self.note = self.note, None
        try:
            return self.count() if type(self) is Rows else sum(batch.num_rows for batch in self.batches())
        finally:
            self.note = note

    def __bool__(self) -> bool:
        """True: whether there are rows is a question that reads them."""
        return True

    def reader(self) -> pa.RecordBatchReader:
        """The rows as an Arrow stream."""
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self.schema, self.batches())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.reader().__arrow_c_stream__(requested_schema)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The rows as dicts, in bounded memory. DataError at damage, unless the selection says otherwise."""
        self._begun_at = _caller()
        return self._dicts()

    def _dicts(self) -> Iterator[dict[str, Any]]:
        self._begun_at = None
        for batch in self.batches():
            yield from dict_rows(batch)

    def __repr__(self) -> str:
        return f"<rawlog.Rows {self.table.name} of {counted(len(self.tree), 'file')}: {', '.join(self.schema.names)}>"

    def _repr_html_(self) -> str:
        """The first rows as a table, for a notebook."""
        try:
            rows = list(itertools.islice(self, SHOWN + 1))
        except RawlogError as error:
            return html_note(f"{self!r}: {str(error).splitlines()[0]}")
        more = f"the first {SHOWN} rows of {self.table.name}" if len(rows) > SHOWN else f"{counted(len(rows), 'row')}"
        values = ([row[name] for name in self.schema.names] for row in rows[:SHOWN])
        return html_table(self.schema.names, values, more, shows_null=True)


def _caller() -> tuple[int, int]:
    """The frame that called the caller of this function, and its instruction: the same for all that one call of `list` asks."""
    frame = sys._getframe(2)
    return id(frame), frame.f_lasti


def dict_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows of a batch as dicts. A time that Python's calendar cannot express is given as microseconds since 1970."""
    columns = [values(column) for column in batch.columns]
    names = batch.schema.names
    for row in zip(*columns, strict=True):
        yield dict(zip(names, row, strict=True))


def values(column: pa.Array) -> list[Any]:
    """The values of a column as Python has them; far times as microseconds since 1970."""
    import pyarrow as pa

    try:
        items: list[Any] = column.to_pylist()
        return items
    except (OverflowError, ValueError):
        if not pa.types.is_timestamp(column.type):
            raise
    numbers = column.cast(pa.int64()).to_pylist()
    return [_time(column[index], number) for index, number in enumerate(numbers)]


def _time(scalar: pa.Scalar, number: int | None) -> Any:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        return number


def _sound_spans(frames: Frames, format: Format, file: File, errors: str) -> Iterator[Spans]:
    """What the frames cover, without those that are damaged. Raises at damage, or ends there, as `errors` says."""
    while len(frames):
        try:
            yield format.codec.spans(frames, file)
            return
        except DataError as error:
            error.at(path=file.path, format=format.name)
            if errors == "raise" or error.position is None:
                raise
            bad = max(int(np.searchsorted(frames.positions, error.position, side="right")) - 1, 0)
            if bad:
                yield format.codec.spans(frames.slice(0, bad), file)
            if errors == "stop":
                raise _Stop from None
            frames = frames.slice(bad + 1, len(frames))


def count_part(part: Part, table: Table, selection: Selection, note: Note | None = None) -> int:
    """The rows of `records` in one part; decoded, and checksums compared, only where the headers of frames do not tell their number."""
    total = 0
    with contextlib.suppress(_Stop):
        for count in _counts(part, table, selection, note):
            total += count
    return total


def _counts(part: Part, table: Table, selection: Selection, note: Note | None) -> Iterator[int]:
    format = registry.formats()[str(part.file.format)]
    is_known = format.can("spans") and part.floor is None and selection.takes_all_of(part.file)
    if not is_known or selection.isolation == "read_committed":
        narrow = selection.replace(columns=("offset",))
        yield from (batch.num_rows for batch in read(part, table, narrow, note))
        return
    with contextlib.closing(Order(part, format, note)) as order:
        if format.can("count") and selection.errors == "raise":
            number, reached = format.codec.count(part.file, part.start or 0, part.stop, part.following, order.follow)
            part, order.position = replace(part, start=reached), reached
            yield number
        want = _want(table.subset(("offset",)), part.file, selection, part.context)
        for frames in _walked_frames(part, format, selection, note, None, order):
            counts = None
            with contextlib.suppress(DataError):  # decoding meets it again, and does with it what the selection says
                counts = format.codec.spans(frames, part.file).records if format.can("spans") else None
            if counts is None or (counts < 0).any():
                yield from (batch.num_rows for batch in _decode(format, frames, want, selection, note))
            else:
                yield int(counts.sum())


# Whether the topics and partitions that a selection names exist ------------------------------------------------------------------

PartitionNames = set[tuple[str, int | None]]


def check_names(
    trees: Tree | Sequence[Tree],
    table: Table,
    selection: Selection,
    note: Callable[[str], None] | None = None,
    *,
    may_come: bool = False,
    more: Iterable[PartitionNames] = (),
) -> None:
    """OptionError with the nearest name for a topic or partition that is in none of the trees; `note` is given a pattern that matches
    nothing. With `may_come`, as in a log that is followed, such names are noted, too.

    Places and settings of files are asked first; where only rows tell their topic, these are read, but only for a name that is missing.
    So is `more`, what tables tell, a few names at a time.
    """
    say = note or (lambda text: None)
    trees = [trees] if isinstance(trees, Tree) else list(trees)
    if selection.id is not None:
        _check_ids(trees, table)
    chosen = selection.suited(table)
    if not (chosen.topics or chosen.topic_pattern or chosen.partitions):
        return
    names: PartitionNames = set()
    for tree in trees:
        names |= _by_place(tree)
    problems = list(_problems(chosen, names))
    if problems:
        for tree in trees:
            names |= _by_rows(tree, table, selection)
        problems = list(_problems(chosen, names))
    for more_names in more if problems else ():
        names |= more_names
        problems = list(_problems(chosen, names))
        if not problems:
            break
    for problem in problems:
        if isinstance(problem, OptionError) and not may_come:
            raise problem
        say(str(problem))


def _check_ids(trees: Sequence[Tree], table: Table) -> None:
    """OptionError if nothing that is read has ids."""
    lookups = {family.name: family.store_class.lookup() for family in registry.families()}
    have = {name: lookup for name, lookup in lookups.items() if lookup is not None}
    systems = {file.system for tree in trees for file in tree if file.system is not None}
    if "." in table.name:
        systems = {table.name.partition(".")[0]}
    if not systems & have.keys():
        ids = " and ".join(f"{lookup.named} of {name}" for name, lookup in have.items())
        present = ", ".join(sorted(systems)) or "nothing"
        raise OptionError(f"--id: {present} has no ids; only {ids} have ids")


def _by_place(tree: Tree) -> PartitionNames:
    """The topics and partitions that the places of files and the settings of stores tell."""
    names: PartitionNames = {(file.place.topic, file.place.partition) for file in tree if file.place.topic is not None}
    for family in registry.families_of(file.system for file in tree):
        files = [file for file in tree if file.system == family.name]
        if files:
            try:
                names |= {(name, None) for name in family.store_class.topics(files)}
            except RawlogError:
                continue  # what is damaged is reported where it is read
    return names


def _by_rows(tree: Tree, table: Table, selection: Selection) -> PartitionNames:
    """The topics and partitions of the rows, where no place tells them."""
    if table.name in ("files", "findings"):
        return set()
    able = registry.formats_with(table)
    folded = registry.maker(table) is not None
    undecided = [
        file
        for file in tree
        if (file.place.topic is None and file.format in able) or (folded and not reads_itself(file, table))
    ]
    names = [name for name in ("topic", partition_column(table)) if name in table.names]
    if not undecided or "topic" not in names or not tree.has(table):
        return set()
    columns = Selection(columns=tuple(map(str, names)), errors="skip", options=selection.options)
    found_names: PartitionNames = set()
    try:
        for batch in Rows(Tree(tree.roots, tree.files if folded else tuple(undecided)), table, columns).batches():
            rows = zip(*(batch.column(at).to_pylist() for at in range(len(names))), strict=True)
            found_names |= {(row[0], row[1] if len(row) > 1 else None) for row in set(rows) if row[0] is not None}
    except RawlogError:
        pass  # what is damaged is reported where it is read
    return found_names


def _problems(selection: Selection, names: PartitionNames) -> Iterator[OptionError | str]:
    topics = {topic for topic, _ in names}
    yield from missing_topics(selection.topics, topics)
    if selection.topic_pattern is not None and not any(map(selection.takes_topic, topics)):
        yield f"topic pattern {selection.topic_pattern}: no topic matches"
    present = {number for topic, number in names if selection.takes_topic(topic)}
    if None in present:
        return  # nothing tells which partitions these are
    if selection.partitions and not names:
        yield OptionError(f"unknown partition {_ranges(selection.partitions)}: there are no partitions here")
    for run in _runs(selection.partitions):
        missing = [number for number in run if number not in present]
        if present and len(missing) == len(run):
            present_text = _ranges(sorted(number for number in present if number is not None))
            yield OptionError(f"unknown partition {_ranges(run)}; known: {present_text}")
        elif present and missing:
            yield f"--partition {_ranges(run)}: there is no {_ranges(missing)}"


def _runs(numbers: Iterable[int]) -> list[list[int]]:
    """Numbers in runs without a gap: `4-7` as a range, `0,9` one by one."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def _ranges(numbers: Iterable[int]) -> str:
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in _runs(numbers)]
    return ", ".join(texts[:5]) + (", …" if len(texts) > 5 else "")
