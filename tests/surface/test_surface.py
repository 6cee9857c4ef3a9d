"""Names that users write or read change only on purpose: `make surface` writes them again, and the diff shows what changed."""

from __future__ import annotations

from pathlib import Path

from tests.surface.surface import text

SURFACE = Path(__file__).parent / "surface.txt"


def test_public_names_are_those_of_the_surface_file() -> None:
    """The file is made by `make surface`. A line that goes or changes is a promise broken: say so in the changelog."""
    before, after = SURFACE.read_text().splitlines(), text().splitlines()
    assert after == before
