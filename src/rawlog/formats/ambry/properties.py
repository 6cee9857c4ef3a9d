"""What `records` shows of a message in its headers: kind, life version and the properties, as text."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from rawlog.formats.ambry.layouts import BLOB_TYPES, Kind
from rawlog.formats.ambry.reader import Messages
from rawlog.tables import HEADERS, arrow_type

_TYPE = arrow_type(HEADERS)
COMMON = ("kind", "life_version")
NUMBERS = ("time_to_live", "is_private", "creation_time", "properties_blob_size")
TEXTS = ("content_type", "owner_id", "service_id")
IDS = ("account_id", "container_id", "is_encrypted")
LATE = ("content_encoding", "filename", "reserved_metadata_blob_id")
OTHERS = ("blob_type", "is_compressed")
UPDATE = ("account_id", "container_id", "update_time")
