"""The wire form of plain values: a message and a dataclass that have fields of the same names."""

from dataclasses import fields
from typing import Any, TypeVar, cast

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

M = TypeVar("M", bound=Message)
V = TypeVar("V")


def to_wire(kind: type[M], value: object, **others: Any) -> M:
    """A message with the fields of a dataclass that it has by the same name, and others; a dataclass is a message."""
    by_name = kind.DESCRIPTOR.fields_by_name
    same = {
        name: _sent(by_name[name], own) for name, own in vars(value).items() if name in by_name and name not in others
    }
    return kind(**same, **others)


def _sent(field: Any, value: Any) -> Any:
    if field.message_type is None or value is None:
        return value
    kind = GetMessageClass(field.message_type)
    if isinstance(value, tuple):
        return [to_wire(kind, one) for one in cast(tuple[object, ...], value)]
    return to_wire(kind, value)


def from_wire(kind: type[V], wire: Message, **others: Any) -> V:
    """A dataclass with the fields of a message that it has by the same name, and others; None: not in the message."""
    by_name = wire.DESCRIPTOR.fields_by_name
    same = {
        field.name: getattr(wire, field.name)
        if not by_name[field.name].has_presence or wire.HasField(field.name)
        else None
        for field in fields(kind)  # type: ignore[arg-type]
        if field.name in by_name and field.name not in others
    }
    return kind(**same, **others)
