"""Options that choose rows are declared once: verbs, the Spark source and the search of the web page have the same ones."""

from __future__ import annotations

from rawlog.engines.spark import options as spark
from rawlog.model.verb import members_of
from rawlog.pages.browser import shell
from rawlog.reading.options import Selecting, field_of, options_in
from rawlog.reading.select import Selection


def test_every_option_of_the_spark_source_gives_a_field_of_a_selection() -> None:
    for option in options_in("spark"):
        field, parser = spark._PARSERS[str(option.spark)]
        assert field == field_of(option.name)
        assert field in Selection.__dataclass_fields__
        assert callable(parser)
    assert len(spark.NAMES) == len(set(spark.NAMES))


def test_the_spark_source_reads_values_by_the_kind_of_the_option() -> None:
    request = spark.parse(
        {
            "path": "/data",
            "partition": "0,2",
            "startingTimestamp": "2024-09-11T09:00:00Z",
            "maxDecompressed": "1m",
            "maxHeaders": "7",
            "columns": "offset, value",
            "isolation": "read_committed",
        }
    )
    selection = request.selection
    assert (selection.partitions, selection.since) == ((0, 2), 1_726_045_200_000_000)
    assert (selection.max_decompressed, selection.max_headers) == (1 << 20, 7)
    assert (selection.columns, selection.isolation) == (("offset", "value"), "read_committed")


def test_the_search_of_the_page_has_the_fields_of_options_and_one_for_text() -> None:
    names = [field.name for field in shell.FIELDS]
    assert names == ["from", "to", "since", "until", "topic", "partition", "key", "text", "id", "where", "decode"]
    assert set(names) == {"text", *(option.field.name for option in options_in("field") if option.field)}
    keys = [field.key for field in shell.FIELDS if field.key]
    assert len(keys) == len(set(keys))


def test_the_search_of_the_page_means_what_options_mean() -> None:
    query = shell.Query.parse(
        b"from=1,000&to=2000&since=2024-09-11T09:00:00Z&topic=order*&partition=3&key=k&text=x&id=7&where=offset+%3E+1"
    )
    assert query.selection() == Selection(
        errors="skip",
        from_offset=1000,
        to_offset=2000,
        since=1_726_045_200_000_000,
        topics=("order*",),
        partitions=(3,),
        key=b"k",
        text=b"x",
        id="7",
        where="offset > 1",
    )


def test_options_of_cat_are_those_of_its_group() -> None:
    assert {option.name for option in (*options_in("spark"), *options_in("field"))} <= {
        option.name for option in members_of(Selecting)
    }
