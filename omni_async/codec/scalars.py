"""Scalars: numbers and times that MessagePack has no exact word for.

In: values of exactly these types, or the bodies of their extensions. Out: extensions, or the values.
Never: imports a module that the wire names.
"""

from __future__ import annotations

import functools
import struct
import zoneinfo
from datetime import date, datetime, time, timedelta, timezone
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import DecodeError
from .wire import Ext, Tag
from .writer import UnsendableError, Write, Writer

if TYPE_CHECKING:
    from .reader import Read, Reader

_COMPLEX = struct.Struct("<dd")
_MICROSECOND = timedelta(microseconds=1)


def _complex(writer: Writer, value: complex, depth: int) -> Any:
    return Ext(Tag.COMPLEX, _COMPLEX.pack(value.real, value.imag))


def _zone_of(writer: Writer, value: datetime | time, depth: int) -> Any:
    if value.tzinfo is None:
        return None
    return writer.fields(value, {"tzinfo": value.tzinfo}, depth)["tzinfo"]


def _datetime(writer: Writer, value: datetime, depth: int) -> Any:
    day = [value.year, value.month, value.day]
    clock = [value.hour, value.minute, value.second, value.microsecond]
    return writer.ext(Tag.DATETIME, [*day, *clock, value.fold, _zone_of(writer, value, depth)])


def _date(writer: Writer, value: date, depth: int) -> Any:
    return writer.ext(Tag.DATE, [value.year, value.month, value.day])


def _time(writer: Writer, value: time, depth: int) -> Any:
    clock = [value.hour, value.minute, value.second, value.microsecond]
    return writer.ext(Tag.TIME, [*clock, value.fold, _zone_of(writer, value, depth)])


def _timedelta(writer: Writer, value: timedelta, depth: int) -> Any:
    return writer.ext(Tag.TIMEDELTA, [value.days, value.seconds, value.microseconds])


def _timezone(writer: Writer, value: timezone, depth: int) -> Any:
    offset = value.utcoffset(None)
    name = value.tzname(None)
    given = None if name == timezone(offset).tzname(None) else name
    return writer.ext(Tag.TIMEZONE, [offset // _MICROSECOND, given])


def _zone(writer: Writer, value: zoneinfo.ZoneInfo, depth: int) -> Any:
    if value.key is None:
        raise UnsendableError("a ZoneInfo without a key cannot be found on the other side")
    return writer.ext(Tag.ZONE, value.key)


def _unset(writer: Writer, value: msgspec.UnsetType, depth: int) -> Any:
    return Ext(Tag.UNSET, b"")


WRITERS: dict[type, Write] = {
    complex: _complex,
    datetime: _datetime,
    date: _date,
    time: _time,
    timedelta: _timedelta,
    timezone: _timezone,
    zoneinfo.ZoneInfo: _zone,
    msgspec.UnsetType: _unset,
}


def _read_long_int(reader: Reader, data: memoryview) -> int:
    return int.from_bytes(data, "little", signed=True)


def _read_surrogates(reader: Reader, data: memoryview) -> str:
    return str(data, "utf-8", "surrogatepass")


def _read_complex(reader: Reader, data: memoryview) -> complex:
    return complex(*_COMPLEX.unpack(data))


def _read_datetime(reader: Reader, data: memoryview) -> datetime:
    # Named one by one: with a single argument of bytes the class would restore a pickled state.
    year, month, day, hour, minute, second, micro, fold, zone = reader.items(data)
    return datetime(year, month, day, hour, minute, second, micro, zone, fold=fold)


def _read_date(reader: Reader, data: memoryview) -> date:
    year, month, day = reader.items(data)
    return date(year, month, day)


def _read_time(reader: Reader, data: memoryview) -> time:
    hour, minute, second, micro, fold, zone = reader.items(data)
    return time(hour, minute, second, micro, zone, fold=fold)


def _read_timedelta(reader: Reader, data: memoryview) -> timedelta:
    days, seconds, micro = reader.items(data)
    return timedelta(days, seconds, micro)


def _read_timezone(reader: Reader, data: memoryview) -> timezone:
    offset, name = reader.items(data)
    offset = timedelta(microseconds=offset)
    return timezone(offset) if name is None else timezone(offset, name)


@functools.cache
def _zones() -> frozenset[str]:
    """Zones of this machine: only these are looked up, since a look-up may import ``tzdata``."""
    return frozenset(zoneinfo.available_timezones())


def _read_zone(reader: Reader, data: memoryview) -> zoneinfo.ZoneInfo:
    key = reader.value(data)
    if key not in _zones():
        raise DecodeError(f"the payload has a time in zone {key!r}, which is not known here")
    return zoneinfo.ZoneInfo(key)


def _read_unset(reader: Reader, data: memoryview) -> msgspec.UnsetType:
    if data:
        raise DecodeError("the payload has an unset value with a content")
    return msgspec.UNSET


READERS: dict[int, Read] = {
    Tag.LONG_INT: _read_long_int,
    Tag.SURROGATES: _read_surrogates,
    Tag.COMPLEX: _read_complex,
    Tag.DATETIME: _read_datetime,
    Tag.DATE: _read_date,
    Tag.TIME: _read_time,
    Tag.TIMEDELTA: _read_timedelta,
    Tag.TIMEZONE: _read_timezone,
    Tag.ZONE: _read_zone,
    Tag.UNSET: _read_unset,
}
