"""Every error ends with what to do next: a command or an option that helps."""

from __future__ import annotations

import os
import pickle
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rawlog.cli import logs
from rawlog.model import errors

SAMPLES = Path(__file__).parents[2] / "samples"
KAFKA, ROCKETMQ, REPLAY, AMBRY = (SAMPLES / name for name in ("kafka", "rocketmq", "replay", "ambry"))
PARTITION, DAMAGED = KAFKA / "transactions-0", REPLAY / "bad-length.log"


def classes(root: type[errors.RawlogError]) -> Iterator[type[errors.RawlogError]]:
    yield root
    for kind in root.__subclasses__():
        yield from classes(kind)


@pytest.mark.parametrize(
    ("words", "step"),
    [
        (["cat", DAMAGED], f"rawlog explain {DAMAGED} --at 237, or --errors skip"),
        (["explain", DAMAGED, "--number", "9"], f"rawlog verify {DAMAGED}"),
        (["cat", KAFKA, "--no-such-option"], "rawlog cat --help"),
        (["cat", KAFKA, "--isolation", "some"], "rawlog cat --help"),
        (["cat", KAFKA, "--table", "recods"], "rawlog cat --help"),
        (["verfy", KAFKA], "rawlog --help"),
        (["cat"], "rawlog cat --help"),
        (["cat", "{tmp}/missing/log"], "ls {tmp}"),
        (["cat", "{strange}"], "--as FORMAT names the format; `rawlog formats` lists them"),
        (["cat", KAFKA, "--topic", "transaction"], "rawlog ls PATH"),
        (["repair", PARTITION, "{full}"], "--force replaces it, or choose another name"),
        (["convert", PARTITION, "{full}/rows.csv"], "--force replaces it, or choose another name"),
        (["record", "orders", "--to", "{full}", "-b", "127.0.0.1:{closed}"], "check the address of -b"),
        (["record", "orders", "--to", "{tmp}/new"], "-b HOST:PORT"),
        (["repair", PARTITION, PARTITION / "inside"], "name a target outside of"),
        (["restore", ROCKETMQ, "{tmp}/new"], "for Apache RocketMQ: rawlog ls, verify, repair, rebuild, erase, rescue"),
        (["compact", ROCKETMQ, "{tmp}/new"], "for Apache RocketMQ: rawlog ls, verify, repair"),
        (["rescue", REPLAY, "--to", "{tmp}/new"], "for kafka-replay: rawlog ls, verify, repair"),
        (["extract", KAFKA, "--to", "{tmp}/new"], "for Apache Kafka: rawlog ls, verify, repair"),
        (["cluster", ROCKETMQ], "for Apache RocketMQ: rawlog ls"),
        (["groups", AMBRY], "for LinkedIn Ambry: rawlog ls"),
        (["lake", "{full}"], "rawlog ls {full}"),
    ],
    ids=lambda value: " ".join(map(str, value[:1])) if isinstance(value, list) else "",
)
def test_a_user_is_shown_what_to_do_next(words: list[Any], step: str, run: Callable[..., Any], tmp_path: Path) -> None:
    """Most errors ended with what was wrong: at 3 a.m. nobody remembers that --errors skip exists, or which verb is RocketMQ's."""
    places = {
        "strange": tmp_path / "strange",
        "full": tmp_path / "full",
        "tmp": tmp_path,
    }
    places["strange"].write_bytes(os.urandom(500))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "rows.csv").write_text("a file")
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = server.getsockname()[1]
    ran = run(*(str(word).format(closed=closed, **places) for word in words))
    assert ran.code in (1, 2, 3)
    assert ran.err.rstrip("\n").rpartition("\n")[2].startswith(f"Next: {step.format(**places)}"), ran.err


def test_verify_ends_with_the_command_that_shows_the_repair(run: Callable[..., Any], tmp_path: Path) -> None:
    """It ended with the number of errors; the command that helps was in the report only."""
    shutil.copytree(PARTITION, tmp_path / "broken")
    log = next((tmp_path / "broken").glob("*.log"))
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    ran = run("verify", tmp_path / "broken")
    assert ran.code == 1
    assert ran.err.splitlines()[-1] == f"Next: rawlog repair {tmp_path}/broken repaired --dry-run"
    assert "Next" not in ran.text
    for verb in ("rebuild", "compact"):
        refused = run(verb, tmp_path / "broken", tmp_path / "new")
        assert refused.code == 1
        assert refused.err.splitlines()[-1].startswith(
            "Next: rawlog repair SRC DST keeps all sound data, or rawlog explain"
        )
    assert "Next" not in run("verify", PARTITION).err
    assert "Next" not in run("verify", tmp_path / "broken", "--json").err


@pytest.mark.parametrize("kind", sorted(classes(errors.RawlogError), key=lambda kind: kind.__name__))
def test_every_class_of_error_has_a_next_step(kind: type[errors.RawlogError]) -> None:
    error = kind.__new__(kind)
    Exception.__init__(error, "what")
    if isinstance(error, errors.DataError):
        errors.DataError.__init__(error, "what", path="a b.log", position=7)
    assert logs.next_step(error, "cat", {"--errors", "--as", "--force"}).startswith(("rawlog ", "--"))


def test_a_next_step_is_kept_when_an_error_comes_from_another_process() -> None:
    error = pickle.loads(pickle.dumps(errors.CorruptError("bad", path="x").advise("rawlog verify x")))
    assert (error.next_step, error.__notes__) == ("rawlog verify x", ["Next: rawlog verify x"])


def test_a_missing_package_is_installed_from_where_rawlog_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pip install "rawlog[lake]"` was the advice, but rawlog is in no index: only the wheel or the clone works."""
    import json
    from importlib import metadata

    wheel = tmp_path / "rawlog-1-py3-none-any.whl"
    wheel.touch()
    info = tmp_path / "rawlog-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: rawlog\nVersion: 1\n")
    origin = info / "direct_url.json"
    origin.write_text(json.dumps({"url": wheel.as_uri(), "archive_info": {}}))
    monkeypatch.setattr(metadata, "distribution", lambda name: metadata.PathDistribution(info))
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    assert errors.install_command("lake") == f'pip install "{wheel}[lake]"'
    (tmp_path / "pipx_metadata.json").write_text("{}")
    assert errors.install_command("lake") == f'pipx install --force "{wheel}[lake]"'
    origin.write_text(json.dumps({"url": tmp_path.as_uri(), "dir_info": {"editable": True}}))
    assert errors.install_command("lake") == f'pipx install --force -e "{tmp_path}[lake]"'
    wheel.unlink()
    origin.write_text(json.dumps({"url": wheel.as_uri()}))
    assert errors.missing("PyIceberg", "lake").next_step == 'pipx install --force "PLACE[lake]"'
    origin.unlink()
    assert errors.install_command("lake") == 'pipx install --force "rawlog[lake]"'
