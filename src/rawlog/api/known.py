"""What rawlog knows: its formats, without importing what reads them."""

from __future__ import annotations

from typing import Any

from rawlog import registry


def list_formats() -> list[dict[str, Any]]:
    """Every format that rawlog knows, in the order of `rawlog formats`: name, family, title, files, abilities, tables.

    (It is not called `formats`, because `rawlog.formats` is the package of the formats.)

    >>> import rawlog
    >>> [one["format"] for one in rawlog.list_formats() if one["family"] == "replay"]
    ['replay.recording']
    """
    return [
        {
            "format": format.name,
            "family": family.name,
            "title": format.title,
            "files": format.files,
            "abilities": format.abilities(),
            "tables": [table.name for table in format.tables] if format.decode is not None else [],
            "carries": sorted(format.carries),
        }
        for family in registry.families()
        for format in family.formats
    ]
