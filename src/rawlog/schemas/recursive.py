"""Avro schemas that contain themselves: they have no columns, so that values are read one by one by fastavro, and shown as JSON."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from rawlog.schemas import kernels as k
from rawlog.schemas.avro import (
    NamedTypes,
    SchemaError,
    Type,
    decimals,
    float_text,
    full_name,
    loaded_schema,
    number_column,
    shown_text,
    uuid_text,
    with_logical,
)


class OneByOne:
    """The values of a schema that contains itself, read one by one by fastavro."""

    def __init__(self, text: str, referenced: Sequence[str] = ()) -> None:
        """SchemaError if fastavro does not take the schema."""
        import fastavro

        self.names: dict[str, Any] = {}
        self.logical: dict[int, Any] = {}
        try:
            for one in (*referenced, text):
                self.schema = fastavro.parse_schema(without_logical(loaded_schema(one)), self.names, _force=True)
        except SchemaError:
            raise
        except Exception as error:
            raise SchemaError(f"{type(error).__name__}: {error}") from None
        loaded = [loaded_schema(one) for one in (*referenced, text)]
        self.named, self.root = NamedTypes(loaded), loaded[-1]

    def read(self, body: bytes) -> tuple[int, str | None, int]:
        """How a body ended, its value as JSON text, and how many bytes are left after it."""
        import fastavro

        stream = io.BytesIO(body)
        try:
            value = fastavro.schemaless_reader(stream, self.schema, None)
        except (EOFError, IndexError) as error:
            return (k.TRUNCATED if isinstance(error, EOFError) else k.CORRUPT), None, 0
        except Exception:
            return k.CORRUPT, None, 0
        try:
            shown = json.dumps(self._shown(value, self.root, ""), ensure_ascii=False)
        except (RecursionError, ValueError, TypeError):
            return k.CORRUPT, None, 0
        return k.OK, shown, len(body) - stream.tell()

    def _shown(self, value: Any, schema: Any, space: str) -> Any:
        """A value in its JSON form; the schema says what bytes and numbers stand for."""
        if isinstance(schema, list):
            return self._branch(value, schema, space)
        schema, space = self.named.resolved(schema, space)
        if not isinstance(schema, dict):
            return _plain(value, schema, {})
        kind = schema.get("type")
        if kind in ("record", "error"):
            inner = full_name(schema, space).rpartition(".")[0]
            return {one["name"]: self._shown(value[one["name"]], one["type"], inner) for one in schema["fields"]}
        if kind == "array":
            return [self._shown(one, schema["items"], space) for one in value]
        if kind == "map":
            return {name: self._shown(one, schema["values"], space) for name, one in value.items()}
        if isinstance(kind, (dict, list)):
            return self._shown(value, kind, space)
        return _plain(value, kind, schema)

    def _branch(self, value: Any, schema: list[Any], space: str) -> Any:
        if value is None:
            return None
        for one in schema:
            try:
                if one != "null":
                    return self._shown(value, one, space)
            except (KeyError, TypeError, AttributeError):
                continue
        return value


def without_logical(schema: Any) -> Any:
    """A schema without logical types: fastavro rounds decimals and fails at far dates, so they are converted here."""
    if isinstance(schema, list):
        return [without_logical(one) for one in schema]
    if isinstance(schema, dict):
        return {
            name: value if name in ("default", "doc", "symbols", "aliases") else without_logical(value)
            for name, value in schema.items()
            if name != "logicalType"
        }
    return schema


def _plain(value: Any, kind: Any, schema: Mapping[str, Any]) -> Any:
    """A value that holds no others, in its JSON form."""
    made = with_logical(Type(str(kind), size=int(schema.get("size", 0)) if kind == "fixed" else 0), schema)
    if isinstance(value, bytes):
        if made.logical == "decimal":
            return decimals(pa.array([value], pa.binary()), made).cast(pa.string())[0].as_py()
        if made.logical == "uuid" and len(value) == 16:
            return uuid_text(value)
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not np.isfinite(value):
        return json.loads(float_text(value))
    if isinstance(value, int) and not isinstance(value, bool) and made.logical:
        one = number_column(made, np.array([value], np.int64), None)
        shown = one if pa.types.is_integer(one.type) or pa.types.is_string(one.type) else shown_text(one)
        return shown[0].as_py()
    return value
