"""Models from JSON, and JSON from models."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from dataclasses import dataclass
from typing import Any, Callable, Generic, Mapping, TypeVar, Union
from urllib.parse import quote

T = TypeVar("T")
U = TypeVar("U")

#: A Decoder makes a value of what JSON says. It raises TypeError or ValueError for anything else.
Decoder = Callable[[Any], T]


@dataclass(frozen=True)
class Page(Generic[T]):
    """A part of a list. ``next_cursor`` asks for the part after it, and is None at the end."""

    data: list[T]
    total: int
    next_cursor: str | None


def anything(value: Any) -> Any:
    return value


def nothing(_: Any) -> None:
    return None


def items(one: Decoder[T]) -> Decoder[list[T]]:
    return lambda value: [one(v) for v in value]


def mapping(one: Decoder[T]) -> Decoder[dict[str, T]]:
    return lambda value: {k: one(v) for k, v in value.items()}


def page(one: Decoder[T]) -> Decoder[Page[T]]:
    def decode(value: Any) -> Page[T]:
        if isinstance(value, list):
            return Page([one(v) for v in value], len(value), None)
        meta = value["meta"]
        return Page([one(v) for v in value["data"]], meta["total"], meta.get("nextCursor") if meta["hasMore"] else None)

    return decode


def model(cls: type[T]) -> Decoder[T]:
    return functools.partial(_decode, cls)


def either(first: type[T], second: type[U]) -> Decoder[T | U]:
    """Decode what the value is: the first, if it has its members."""
    return functools.partial(_choose, (first, second))


@functools.lru_cache(maxsize=None)
def _hints(cls: type[Any]) -> Mapping[str, Any]:
    return typing.get_type_hints(cls)


def _decode(hint: Any, value: Any) -> Any:
    if hint is Any:
        return value
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return _choose(args, value)
    if origin is typing.Literal:
        return value  # a later server may have another word
    if origin is list:
        return [_decode(args[0], v) for v in _is(list, value)]
    if origin is dict:
        return {k: _decode(args[1], v) for k, v in _is(dict, value).items()}
    if dataclasses.is_dataclass(hint):
        return _object(hint, _is(dict, value))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return _is(hint, value)


def _is(cls: Any, value: Any) -> Any:
    if not isinstance(value, cls):
        raise TypeError(f"the server sent {type(value).__name__}, and not {cls.__name__}")
    return value


def _choose(options: tuple[Any, ...], value: Any) -> Any:
    if value is None and type(None) in options:
        return None
    reasons: list[Exception] = []
    for option in options:
        if option is type(None):
            continue
        try:
            return _decode(option, value)
        except (TypeError, ValueError) as e:
            reasons.append(e)
    raise reasons[0]


def _object(cls: Any, value: Mapping[str, Any]) -> Any:
    """Members that this client does not know are left out."""
    hints, known = _hints(cls), {}
    for field in dataclasses.fields(cls):
        name = field.metadata.get("json", field.name)
        if name in value:
            known[field.name] = _decode(hints[field.name], value[name])
    return cls(**known)  # a TypeError names a member that is missing


def encode(value: Any) -> Any:
    """Return the JSON of a model. A member that is None is left out; in a mapping, it is null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        members = ((f.metadata.get("json", f.name), getattr(value, f.name)) for f in dataclasses.fields(value))
        return {name: encode(v) for name, v in members if v is not None}
    if isinstance(value, Mapping):
        return {k: encode(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(v) for v in value]
    return value


def segment(value: object) -> str:
    """Return a value as one segment of a path."""
    return quote(str(value), safe="")


def file_path(value: str) -> str:
    """Return a path in a sandbox. An absolute one has its slashes escaped, which a relative one must not."""
    return quote(value, safe="" if value.startswith("/") else "/")


def query(**values: Any) -> dict[str, Any]:
    """Return the parameters that are not None."""

    def text(v: Any) -> Any:
        if isinstance(v, bool):
            return "true" if v else "false"
        return list(v) if isinstance(v, (list, tuple)) else v

    return {k: text(v) for k, v in values.items() if v is not None}
