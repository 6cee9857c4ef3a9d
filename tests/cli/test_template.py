"""`--format`: rpk's grammar."""

from __future__ import annotations

import pyarrow as pa
import pytest

from rawlog.cli.template import compile_template, unescape
from rawlog.model.errors import OptionError
from rawlog.model.table import RECORDS
from rawlog.model.text import printable

BATCH = pa.RecordBatch.from_pylist(
    [
        {
            "key": b"k\xff",
            "value": b"\x00\x00\x00\x05\x01\x02tail",
            "topic": "orders",
            "partition": 3,
            "offset": 258,
            "timestamp": 1706868930123456,
            "timestampType": 1,
            "headers": [{"key": "a", "value": b"1"}, {"key": "b", "value": None}],
        },
        {"timestamp": None, "headers": []},
    ],
    schema=RECORDS.schema,
)


def show(text: str, **options: object) -> list[bytes]:
    template = compile_template(text + r"\x1e", RECORDS, **options)
    return bytes(template.lines.render(BATCH.select(list(template.columns)))).split(b"\x1e")[:-1]


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [
        ("%t-%p", b"orders-3", b"--1"),
        ("%o %k", b"258 k\xff", b"-1 "),
        ("%v{hex}|%s{hex}", b"0000000501027461696c|0000000501027461696c", b"|"),
        ("%v{base64} %v{base64raw}", b"AAAABQECdGFpbA== AAAABQECdGFpbA", b" "),
        ("%T %K %V %S %H", b"6 2 10 10 2", b"0 0 0 0 0"),
        ("%d", b"1706868930123", b"-1"),
        ("%d{strftime[%F %T]}", b"2024-02-02 10:15:30", b""),
        ("%d{strftime##%F##}", b"2024-02-02", b""),
        ("%d{go[2006-01-02T15:04:05.000Z07:00]}", b"2024-02-02T10:15:30.123Z", b""),
        ("%o{hex} %o{hex64} %o{hex8} %o{hex4}", b"102 0000000000000102 02 2", b"f" * 16 + b" " + b"f" * 16 + b" ff f"),
        ("%o{big16}%o{little16}%o{byte}", b"\x01\x02\x02\x01\x02", b"\xff" * 5),
        ("%o{big64}", b"\0\0\0\0\0\0\x01\x02", b"\xff" * 8),
        ("%H{bool}", b"true", b"false"),
        ("%h{%k=%v;}", b"a=1;b=;", b""),
        ("%h{%K{hex8} %v{hex}%%%{%}}", b"01 31%{}01 %{}", b""),
        ("%h", b"a=1,b=", b""),
        ("%i", b"1", b"2"),
        ("%%%{%}\\t\\\\", b"%{}\t\\", b"%{}\t\\"),
        ("%v{unpack[>iBb s]}", b"", b""),
        ("%a{timestamp-type} %a{timestamp-type;hex8}", b"1 01", b"-1 ff"),
    ],
)
def test_verbs(text, first, second):
    if "[>iBb s]" in text:
        with pytest.raises(OptionError):
            show(text)
        return
    assert show(text) == [first, second]


def test_unpack():
    assert show("%v{unpack[>ixBb.s$]}")[0] == b"5 12tail"
    assert show("%v{unpack{<HIq}}")[0].endswith(b"<too short>")
    assert show("%v{unpack[i$]}")[0] == b"5<bytes left over>"


def test_bytes_in_one_form():
    assert show("%k %t", form="hex")[0] == b"6bff orders"
    assert show("%k", form="escape")[0] == b"k\\xff"


def test_a_terminal_gets_no_control_characters():
    assert show("%v", safe=printable)[0] == b"\\x00\\x00\\x00\\x05\\x01\\x02tail"


@pytest.mark.parametrize(
    "text", ["%", "%Q", "%v{", "%v{x}", "%d{strftime}", "%a", "%a{x}", r"\q", r"\x1", "%[", "%x", "%h{%t}", "%o{hex5}"]
)
def test_what_is_not_grammar(text):
    with pytest.raises(OptionError):
        compile_template(text, RECORDS)


def test_delimiters():
    assert unescape(r"\t\n\r\0\\\xff") == b"\t\n\r\0\\\xff"
