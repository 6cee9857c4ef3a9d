"""The errors that rawlog raises, for `except rawlog.errors.RawlogError`. `rawlog.model.errors` defines them."""

from rawlog.model.errors import (
    AccessError,
    CorruptError,
    DataError,
    EncodeError,
    LimitError,
    OptionError,
    RawlogError,
    TruncatedError,
    UnknownFormatError,
    UnsupportedError,
)

__all__ = [
    "AccessError",
    "CorruptError",
    "DataError",
    "EncodeError",
    "LimitError",
    "OptionError",
    "RawlogError",
    "TruncatedError",
    "UnknownFormatError",
    "UnsupportedError",
]
