"""The picture of the README: real output of rawlog on the samples, as SVG. `python docs/picture.py` writes docs/pictures/tour.svg."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "pictures" / "tour.svg"
WIDTH = 118
#: Commands, and how many lines of their output are shown.
COMMANDS = (
    ("rawlog ls samples/kafka --topic 'codec-*'", 6),
    (
        "rawlog cat samples/kafka --topic transactions --isolation read_committed --limit 3 --columns offset,key,value",
        4,
    ),
    ("rawlog verify samples/replay", 8),
    ("rawlog groups samples/kafka --group group-classic", 5),
)
#: Without the web fonts that rich names.
FORMAT = """<svg xmlns="http://www.w3.org/2000/svg" class="rich-terminal" viewBox="0 0 {width} {height}" role="img">
<title>A terminal in which rawlog lists partitions, prints committed records, verifies recordings and shows the lag of a group</title>
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: {char_height}px;
  line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""


def output(command: str) -> str:
    """What a command prints on a terminal of WIDTH columns."""
    environment = {
        **os.environ,
        "COLUMNS": str(WIDTH),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    program = f"import pty, sys; sys.exit(pty.spawn(['sh', '-c', {f'stty cols {WIDTH}; {command} 2>/dev/null'!r}]))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return re.sub(r"\x1b\[\?\d+[hl]|\x1b\[[0-9;]*[HJK]|\r", "", done.stdout.decode())


def main() -> None:
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, legacy_windows=False)
    for command, most in COMMANDS:
        console.print(Text.assemble(("$ ", "bold green"), (command, "bold")), no_wrap=True, overflow="ellipsis")
        lines = output(command).splitlines()
        for line in [*lines[:most], *(["…"] if len(lines) > most else [])]:
            console.print(Text.from_ansi(line), no_wrap=True, overflow="ellipsis")
        console.print()
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(
        console.export_svg(title="rawlog", theme=MONOKAI, code_format=FORMAT, unique_id="rawlog"), encoding="utf-8"
    )
    print(TARGET.relative_to(ROOT))


if __name__ == "__main__":
    main()
