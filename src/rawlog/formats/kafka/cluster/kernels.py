"""Records of a metadata log replayed by columns: which of them are superseded, and what the others leave of each partition.

Topics, partitions, their changes and settings are parsed here, and only in the form in which Kafka writes them. All other records are
for the state itself, in their order.
"""

from __future__ import annotations

from typing import Any

from rawlog.formats.kafka.log.layouts import NONE
from rawlog.kernels import inline, kernel
from rawlog.kernels.hashes import WORD, murmur2
from rawlog.kernels.ints import read_i8, read_i32, read_i64, read_u8, read_uvarint
from rawlog.kernels.types import I64, U8, Bools, I64x2, OutBools, OutI64, OutI64x2
from rawlog.model.status import OK

NO_OP, OTHER, BARRIER, TOPIC, REMOVAL, PARTITION, CHANGE, SETTING = range(8)
"""What a record is. OTHER: it changes no topic and no partition. BARRIER: only the state can tell what it changes."""

COLUMNS = 5
"""What is parsed of a record, by place."""
KIND, FLAGS, NUMBER, START, STOP = range(COLUMNS)
# NUMBER is that of a partition; START and STOP are of a topic's id, or of the name of a setting and its resource.

FIELDS = 9
"""The fields of a change, by their tags. FLAGS has a bit for each that a change sets, and these two."""
ISR, LEADER, REPLICAS, REMOVING, ADDING, RECOVERY, ELIGIBLE, LAST_ELIGIBLE, DIRECTORIES = range(FIELDS)
HAS_UNKNOWN = 1 << FIELDS  # tags that no schema knows
HAS_MISFIT = 2 << FIELDS  # another number of directories than of replicas

PLACES = 4 + FIELDS
"""What is kept of a partition, by place: the life of its topic that it belongs to, whether it exists, whether the state itself must replay
its records, the record that made it (NONE: it was there before), and the last record that set each field."""
LIFE, EXISTS, FORCED, BASE, LAST = range(5)
CHANGES, LEADERS = range(2)
"""What is counted of a partition's changes that do not reach the state one by one: all, and those that set a leader."""

EPOCHS = 2
"""What is read of the record that made a partition, besides its fields."""
LEADER_EPOCH, PARTITION_EPOCH = range(EPOCHS)
MIGRATED = -2
"""In place of the count of its directories: none is known yet, of as many as there are replicas."""

_FRAME, _ID, _MORE, _MOST_TAGS, _LONGEST = 3, 16, 0x80, 15, 3
_MOST = 16 << 20
_TOPIC, _PARTITION, _SETTING, _CHANGE, _REMOVAL, _NO_OP, _BEGIN, _ABORT, _CLEAR_ELR = 2, 3, 4, 5, 9, 20, 23, 25, 28
_NEWEST = 2  # version of partitions and of their changes
_SAME_LEADER, _SAME_RECOVERY = -2, -1


@inline
def _number(data: Any, position: Any, end: Any) -> Any:
    """An unsigned number and the position after it, below 0 if it is cut or longer than any length here."""
    value, after = read_uvarint(data, position, end)
    if after < 0 or after - position > _LONGEST:
        return 0, NONE
    return value, after


@inline
def _array(data: Any, position: Any, end: Any, size: Any) -> Any:
    """The count of an array, -1 for null, and the position after it, below 0 if it is cut."""
    count, after = _number(data, position, end)
    count -= 1
    if after < 0 or count * size > end - after:
        return 0, NONE
    if count > 0:
        after += count * size
    return count, after


@inline
def _item_size(kind: Any, version: Any, tag: Any) -> Any:
    """What a tag of a partition or of a change holds: the size of an array's items, less than 0 for one number of that size; 0: the
    schema knows no such tag; 1: not one of this version.
    """
    if kind == PARTITION:
        if tag == 0:
            return -1
        if tag > 2:
            return 0
        return 4 if version > 1 else 1
    if kind != CHANGE or tag >= FIELDS:
        return 0
    if tag == LEADER:
        return -4
    if tag == RECOVERY:
        return -1
    if tag == DIRECTORIES:
        return 16 if version > 0 else 1
    if tag in (ELIGIBLE, LAST_ELIGIBLE):
        return 4 if version > 1 else 1
    return 4


@inline
def _parse_tags(data: Any, position: Any, end: Any, kind: Any, version: Any) -> Any:
    """FLAGS of a record by its tags, which end it; NONE if they are not as Kafka writes them."""
    count, position = _number(data, position, end)
    if position < 0 or count > _MOST_TAGS:
        return NONE
    flags, previous, replicas, directories = 0, NONE, NONE, NONE
    for _ in range(count):
        tag, position = _number(data, position, end)
        if position < 0 or tag <= previous:
            return NONE
        previous = tag
        size, position = _number(data, position, end)
        if position < 0 or size > end - position:
            return NONE
        stop, item = position + size, _item_size(kind, version, tag)
        if item == 1:
            return NONE
        if item == 0:
            flags |= HAS_UNKNOWN
        elif item < 0:
            if size != -item:
                return NONE
            if kind == CHANGE:
                value = read_i32(data, position) if item == -4 else read_i8(data, position)
                if value != (_SAME_LEADER if item == -4 else _SAME_RECOVERY):
                    flags |= 1 << tag
        else:
            items, after = _array(data, position, stop, item)
            if after != stop:
                return NONE
            if kind == CHANGE and items >= 0:
                flags |= 1 << tag
                if tag == REPLICAS:
                    replicas = items
                elif tag == DIRECTORIES:
                    directories = items
        position = stop
    if replicas >= 0 and directories >= 0 and replicas != directories:
        flags |= HAS_MISFIT
    return flags if position == end else NONE


@inline
def _parse_partition(data: Any, position: Any, end: Any, version: Any) -> Any:
    """FLAGS of a partition from its replicas on, NONE if it is not as Kafka writes it."""
    replicas, directories, has_place = 0, 0, False
    for number in range(4):
        items, position = _array(data, position, end, 4)
        if position < 0 or items < 0:
            return NONE
        if number == 0:
            replicas = items
    if end - position < 12:
        return NONE
    position += 12
    if version > 0:
        directories, after = _array(data, position, end, _ID)
        if after < 0 or directories < 0:
            return NONE
        for at in range(after - directories * _ID, after):
            if read_u8(data, at) != 0:
                has_place = True
                break
        position = after
    flags = _parse_tags(data, position, end, PARTITION, version)
    if flags >= 0 and has_place and directories != replicas:
        flags |= HAS_MISFIT
    return flags


@inline
def _parse_setting(data: Any, position: Any, end: Any) -> Any:
    """FLAGS of a setting and where its name ends; NONE if it is not as Kafka writes it, or not named in ASCII."""
    start = position
    size, position = _array(data, position + 1, end, 1)
    if position < 0 or size < 0:
        return NONE, 0
    size, position = _array(data, position, end, 1)
    if position < 0 or size < 0:
        return NONE, 0
    stop = position
    _, position = _array(data, position, end, 1)
    if position < 0:
        return NONE, 0
    for at in range(start, stop):
        if read_u8(data, at) >= _MORE:
            return NONE, 0
    return _parse_tags(data, position, end, SETTING, 0), stop


@kernel
def parse_records(data: U8, starts: I64, controls: Bools, table: OutI64x2) -> Any:
    """Fill a row of `table` for each record; record `i` is `data[starts[i]:starts[i + 1]]`. -> (count, position, status)"""
    count = starts.size - 1
    for index in range(count):
        start, end = starts[index], starts[index + 1]
        kind, flags, number, first, stop = BARRIER, 0, NONE, 0, 0
        if controls[index]:
            kind = OTHER
        elif _FRAME < end - start <= _MOST and read_u8(data, start) == 1:
            record, version, position = read_u8(data, start + 1), read_u8(data, start + 2), start + _FRAME
            if record >= _MORE or version >= _MORE or _BEGIN <= record <= _ABORT or record == _CLEAR_ELR:
                kind = BARRIER
            elif record == _NO_OP:
                kind = NO_OP if version == 0 and end - position == 1 and read_u8(data, position) == 0 else OTHER
            elif record == _SETTING:
                kind = OTHER
                if version == 0:
                    flags, stop = _parse_setting(data, position, end)
                    if flags >= 0:
                        kind, first = SETTING, position
            elif record == _TOPIC and version == 0:
                size, position = _array(data, position, end, 1)
                if position >= 0 and size >= 0 and end - position > _ID:
                    first = position
                    flags = _parse_tags(data, position + _ID, end, TOPIC, 0)
                    kind = TOPIC if flags >= 0 else BARRIER
            elif record == _REMOVAL and version == 0:
                if end - position > _ID:
                    first = position
                    flags = _parse_tags(data, position + _ID, end, REMOVAL, 0)
                    kind = REMOVAL if flags >= 0 else BARRIER
            elif record in (_PARTITION, _CHANGE) and version <= _NEWEST:
                if end - position > 4 + _ID:
                    number, first = read_i32(data, position), position + 4
                    position = first + _ID
                    if record == _PARTITION:
                        flags = _parse_partition(data, position, end, version)
                        kind = PARTITION if flags >= 0 else BARRIER
                    else:
                        flags = _parse_tags(data, position, end, CHANGE, version)
                        kind = CHANGE if flags >= 0 else BARRIER
            elif record not in (_TOPIC, _REMOVAL, _PARTITION, _CHANGE):
                kind = OTHER
        table[index, KIND], table[index, FLAGS], table[index, NUMBER] = kind, flags, number
        table[index, START], table[index, STOP] = first, stop
    return count, 0, OK


@kernel
def assign_numbers(
    data: U8,
    table: I64x2,
    topic_slots: OutI64,
    slots: OutI64,
    topics: OutI64,
    parts: OutI64,
    first_of_topic: OutI64,
    first: OutI64,
) -> Any:
    """Number the topics of a run of records, and their partitions together with the settings, as they appear.

    `topics` and `parts` get the numbers of each record, NONE for none; `first_of_topic` and `first` the first record of each number. The
    slots are hash tables full of NONE, their sizes powers of two above twice the counts. -> (topics, partitions and settings, status)
    """
    topic_count = part_count = 0
    topic_mask, mask = topic_slots.size - 1, slots.size - 1
    for index in range(table.shape[0]):
        topics[index] = parts[index] = NONE
        kind, start, stop = table[index, KIND], table[index, START], table[index, STOP]
        if kind == SETTING:
            at = murmur2(data, start, stop) & mask
            while slots[at] >= 0:
                other = first[slots[at]]
                length = stop - start
                if table[other, KIND] == SETTING and table[other, STOP] - table[other, START] == length:
                    place, same = table[other, START], 0
                    while same < length and read_u8(data, place + same) == read_u8(data, start + same):
                        same += 1
                    if same == length:
                        break
                at = (at + 1) & mask
        elif kind >= TOPIC:
            at = murmur2(data, start, start + _ID) & topic_mask
            while topic_slots[at] >= 0:
                place = table[first_of_topic[topic_slots[at]], START]
                if read_i64(data, place) == read_i64(data, start) and read_i64(data, place + 8) == read_i64(
                    data, start + 8
                ):
                    break
                at = (at + 1) & topic_mask
            if topic_slots[at] < 0:
                topic_slots[at] = topic_count
                first_of_topic[topic_count] = index
                topic_count += 1
            topic = topic_slots[at]
            topics[index] = topic
            if kind < PARTITION:
                continue
            number = table[index, NUMBER]
            at = (topic * 0x9E37_79B1 + (number & WORD) * 0x85EB) & WORD
            at = (at ^ at >> 15) & mask
            while slots[at] >= 0:
                other = first[slots[at]]
                if topics[other] == topic and table[other, NUMBER] == number:
                    break
                at = (at + 1) & mask
        else:
            continue
        if slots[at] < 0:
            slots[at] = part_count
            first[part_count] = index
            part_count += 1
        parts[index] = slots[at]
    return topic_count, part_count, OK


@kernel
def mark_needed(
    table: I64x2,
    topics: I64,
    parts: I64,
    exists: OutI64,
    lives: OutI64,
    state: OutI64x2,
    needed: OutBools,
    effective: OutBools,
    superseded: OutI64x2,
) -> Any:
    """Replay a run of records without their content: which are needed, and what the others count for.

    `exists` says of each topic whether it is there before the run, `state` the same of each partition; `lives` and `superseded` are
    zeros. A record that a controller would refuse is needed, since the state says why, and so is what that refusal depends on. So are
    records of partitions that have tags which no schema knows. Of all other partitions no record is needed: `read_partitions` tells
    what the run leaves of them. -> (count, position, status)
    """
    count = table.shape[0]
    for index in range(count):
        kind, flags = table[index, KIND], table[index, FLAGS]
        topic, part = topics[index], parts[index]
        needed[index], effective[index] = kind <= REMOVAL and kind != NO_OP, False
        if kind == SETTING:
            needed[index] = flags & HAS_UNKNOWN != 0
            state[part, BASE] = index
        elif kind in (TOPIC, REMOVAL):
            exists[topic] = kind == TOPIC
            lives[topic] += 1
        elif kind == PARTITION:
            if not exists[topic] or flags & HAS_MISFIT:
                needed[index] = True
                continue
            if flags & HAS_UNKNOWN:
                needed[index] = True
                state[part, FORCED] = 1
            state[part, LIFE], state[part, EXISTS], state[part, BASE] = lives[topic], 1, index
            state[part, LAST:] = NONE
        elif kind == CHANGE:
            if not exists[topic] or not state[part, EXISTS] or state[part, LIFE] != lives[topic]:
                needed[index] = True
                continue
            if flags & (HAS_MISFIT | HAS_UNKNOWN):
                needed[index] = True
                state[part, FORCED] = 1
                if state[part, BASE] >= 0:
                    needed[state[part, BASE]] = True
            if flags & HAS_MISFIT:
                continue
            effective[index] = True
            for tag in range(FIELDS):
                if flags >> tag & 1:
                    state[part, LAST + tag] = index
    for index in range(count):
        kind, topic, part = table[index, KIND], topics[index], parts[index]
        if kind == SETTING:
            needed[index] |= state[part, BASE] == index
        elif kind >= PARTITION and exists[topic] and state[part, EXISTS] and state[part, LIFE] == lives[topic]:
            base = state[part, BASE]
            if kind == PARTITION:
                needed[index] |= state[part, FORCED] != 0 and index == base
            elif effective[index] and index > base:
                is_last = False
                if state[part, FORCED]:
                    for tag in range(FIELDS):
                        is_last |= state[part, LAST + tag] == index
                if is_last:
                    needed[index] = True
                elif not needed[index]:
                    superseded[part, CHANGES] += 1
                    superseded[part, LEADERS] += table[index, FLAGS] >> LEADER & 1
    return count, 0, OK


@inline
def _find_tag(data: Any, position: Any, end: Any, wanted: Any) -> Any:
    """Where a tag of a parsed record begins and ends, NONE if the record does not have it."""
    count, position = _number(data, position, end)
    for _ in range(count):
        if position < 0:
            return NONE, NONE
        tag, position = _number(data, position, end)
        if position < 0:
            return NONE, NONE
        size, position = _number(data, position, end)
        if position < 0 or size > end - position:
            return NONE, NONE
        if tag == wanted:
            return position, position + size
        position += size
    return NONE, NONE


@inline
def _find_items(data: Any, position: Any, stop: Any, size: Any) -> Any:
    """Where the items of an array begin, how many there are, and the position after them; NONE for null or what is cut."""
    count, after = NONE, NONE
    if position >= 0:
        count, after = _array(data, position, stop, size)
    return after - max(count, 0) * size, count, after


@inline
def _is_migrating(data: Any, position: Any, count: Any) -> Any:
    """Whether none of these directories is known."""
    known = False
    for at in range(position, position + max(count, 0) * _ID):
        known |= read_u8(data, at) != 0
    return not known


@kernel
def read_partitions(
    data: U8, starts: I64, state: I64x2, parts: I64, epochs: OutI64x2, values: OutI64x2, counts: OutI64x2
) -> Any:
    """What a run leaves of some partitions: their last records were parsed and are marked in `state`.

    A column of `epochs` is of the record that made a partition. Of each field, `counts` has the number of items and `values` where they
    begin, or the value itself of a field that is no array; NONE is the count of what is null and of what no record sets.
    -> (count, position, status)
    """
    for column in range(parts.size):
        part = parts[column]
        base = state[part, BASE]
        for field in range(FIELDS):
            values[field, column], counts[field, column] = 0, NONE
        if base >= 0:
            position, end = starts[base] + _FRAME, starts[base + 1]
            version = read_u8(data, position - 1)
            position += 4 + _ID
            for field in (REPLICAS, ISR, REMOVING, ADDING):
                values[field, column], counts[field, column], position = _find_items(data, position, end, 4)
            values[LEADER, column], counts[LEADER, column] = read_i32(data, position), 1
            epochs[LEADER_EPOCH, column] = read_i32(data, position + 4)
            epochs[PARTITION_EPOCH, column] = read_i32(data, position + 8)
            position += 12
            if version > 0:
                values[DIRECTORIES, column], counts[DIRECTORIES, column], position = _find_items(
                    data, position, end, _ID
                )
            if _is_migrating(data, values[DIRECTORIES, column], counts[DIRECTORIES, column]):
                counts[DIRECTORIES, column] = MIGRATED
            at, _ = _find_tag(data, position, end, 0)
            values[RECOVERY, column], counts[RECOVERY, column] = 0 if at < 0 else read_i8(data, at), 1
            for field in (ELIGIBLE, LAST_ELIGIBLE):
                at, stop = _find_tag(data, position, end, field - ELIGIBLE + 1)
                values[field, column], counts[field, column], _ = _find_items(data, at, stop, 4)
        for field in range(FIELDS):
            last = state[part, LAST + field]
            if last >= 0:
                at, stop = _find_tag(data, starts[last] + _FRAME + 4 + _ID, starts[last + 1], field)
                if field == LEADER:
                    values[field, column], counts[field, column] = read_i32(data, at), 1
                elif field == RECOVERY:
                    values[field, column], counts[field, column] = read_i8(data, at), 1
                else:
                    size = _ID if field == DIRECTORIES else 4
                    values[field, column], counts[field, column], _ = _find_items(data, at, stop, size)
        last = state[part, LAST + DIRECTORIES]
        if 0 <= last < state[part, LAST + REPLICAS] and _is_migrating(
            data, values[DIRECTORIES, column], counts[DIRECTORIES, column]
        ):
            counts[DIRECTORIES, column] = MIGRATED
    return parts.size, 0, OK
