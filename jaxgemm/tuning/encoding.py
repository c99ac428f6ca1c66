"""Values of dataclasses as JSON data and back, by their fields."""

import contextlib
import dataclasses
import types
import typing
from typing import Any

import jax.numpy as jnp
import numpy as np


def to_json(value: Any) -> Any:
    """A frozen value made of dataclasses, tuples, dtypes and scalars as JSON data."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [to_json(x) for x in value]
    if isinstance(value, np.dtype):
        return value.name
    assert value is None or isinstance(value, bool | int | float | str), value
    return value


def from_json(kind: Any, data: Any) -> Any:
    """The value of an annotated type that `to_json` made data of.

    Raises:
      ValueError: the data is something else. A field that is absent takes its default.
    """
    if dataclasses.is_dataclass(kind):
        return _dataclass_from_json(kind, data)
    if kind is np.dtype and isinstance(data, str):
        return jnp.dtype(data)
    origin, of = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple and isinstance(data, list):
        kinds = (of[0],) * len(data) if of[-1] is ... else of
        if len(kinds) == len(data):
            return tuple(map(from_json, kinds, data))
    if origin is typing.Literal and data in of:
        return data
    if origin in (types.UnionType, typing.Union):
        for option in of:
            with contextlib.suppress(ValueError):
                return from_json(option, data)
    if kind is float and type(data) is int:
        return float(data)
    # bool is an int to isinstance.
    if isinstance(kind, type) and type(data) is kind:
        return data
    raise ValueError(f"{data!r} is not a {kind}")


def _dataclass_from_json(kind: Any, data: Any) -> Any:
    hints = typing.get_type_hints(kind)
    names = {f.name for f in dataclasses.fields(kind)}
    if not isinstance(data, dict) or not data.keys() <= names:
        raise ValueError(f"{data!r} is not a {kind.__name__}")
    try:
        return kind(**{name: from_json(hints[name], x) for name, x in data.items()})
    except TypeError as error:
        raise ValueError(f"{data!r} is not a {kind.__name__}: {error}") from error
