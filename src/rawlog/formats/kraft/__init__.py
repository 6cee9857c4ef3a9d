"""KRaft: the files of a cluster's metadata beside its log, which is an ordinary Kafka segment."""

from __future__ import annotations

import re

from rawlog.format import Family, Format, Place
from rawlog.formats.kafka.paths import directory_place, file_named, split

_CHECKPOINT = re.compile(r"(\d{20})-(\d{10})\.checkpoint(?:\.(deleted|part))?")


def is_checkpoint(path: str) -> Place | None:
    """A snapshot of the metadata (`<offset>-<epoch>.checkpoint`), or the one a new cluster starts from."""
    folder, name = split(path)
    if name == "bootstrap.checkpoint":
        return Place(group=folder)
    found = _CHECKPOINT.fullmatch(name)
    if found is None:
        return None
    place = directory_place(folder)
    return Place(place.topic, place.partition, int(found.group(1)), folder, found.group(3) or place.state)


FAMILY = Family(
    name="kraft",
    title="Kafka KRaft metadata",
    formats=(
        Format(
            name="kraft.checkpoint",
            title="snapshot of the cluster's metadata",
            files="<offset>-<epoch>.checkpoint, bootstrap.checkpoint",
            match=is_checkpoint,
        ),
        Format(
            name="kraft.quorum",
            title="election state of a controller",
            files="quorum-state",
            match=file_named("quorum-state"),
        ),
    ),
)
