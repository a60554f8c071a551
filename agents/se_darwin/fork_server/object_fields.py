"""Fields of an object: its attributes, those in ``__slots__`` included."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress


def fields_of(value: object) -> dict[str, object]:
    """Return the fields of *value* that are set, by name."""
    fields = dict(getattr(value, "__dict__", {}))
    for name in _slots(value):
        with suppress(AttributeError):  # it was never set
            fields[name] = object.__getattribute__(value, name)
    return fields


def set_fields(value: object, fields: dict[str, object]) -> None:
    """Give *value* exactly *fields*; those that it has besides are deleted."""
    slots = set(_slots(value))
    for name in slots - fields.keys():
        with suppress(AttributeError):
            object.__delattr__(value, name)
    for name in slots & fields.keys():
        object.__setattr__(value, name, fields.pop(name))
    if fields or hasattr(value, "__dict__"):
        vars(value).clear()
        vars(value).update(fields)


def _slots(value: object) -> Iterator[str]:
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__"):
                private = name.startswith("__") and not name.endswith("__")
                yield f"_{kind.__name__.lstrip('_')}{name}" if private else name
