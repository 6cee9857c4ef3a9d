"""Messages that hold messages: how many are decoded at a time is bounded (issue 13, A3)."""

from __future__ import annotations

import pytest

import rawlog
from rawlog.errors import LimitError
from rawlog.formats.rocketmq import decoder
from tests.golden_data import golden_path

STORE = golden_path("rocketmq", "5.1.4", "store")


def test_many_batch_messages_are_taken_apart_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rawlog.read(STORE)
    sizes = [one.num_rows for one in rawlog.open(STORE).table().batches()]
    monkeypatch.setattr(decoder, "MOST_INNER", 40)
    assert rawlog.read(STORE).equals(whole)
    assert len(list(rawlog.open(STORE).table().batches())) > len(sizes)


def test_a_message_with_too_many_inside_is_an_error_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "MOST_INNER", 1)
    with pytest.raises(LimitError, match="inner batch: more than 1 messages") as caught:
        rawlog.read(STORE)
    assert caught.value.path is not None
    assert caught.value.position is not None
