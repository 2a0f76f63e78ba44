"""Protobuf messages and services that are built from tables, so that no code is generated.

A field is ``number name type``, with ``repeated`` or ``map`` (of strings) before the type, and ``*`` after it if it is
one of the values of which a message has one. A method is ``name request response``, with ``stream`` before the response
if there are many. Entries end with a semicolon.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD: Final = re.compile(r"(\d+) (\w+) (repeated |map )?(\w+)( \*)?")
_METHOD: Final = re.compile(r"(\w+) (\w+) (stream )?(\w+)")
_KINDS: Final[dict[str, Any]] = {
    kind: getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{kind.upper()}")
    for kind in ("string", "bool", "int32", "int64", "double", "float")
}
_ONE: Final = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
_MANY: Final = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED


class ProtobufPackage:
    """Messages and services of a package, in a pool of their own.

    Args:
        name: Name of the package.
        messages: Table of each message.
        services: Table of each service.
        oneof: Name of the values of which a message has one.
    """

    def __init__(
        self, name: str, messages: Mapping[str, str], services: Mapping[str, str] | None = None, *, oneof: str = ""
    ) -> None:
        file = descriptor_pb2.FileDescriptorProto(name=f"{name}.proto", package=name, syntax="proto3")
        for message, table in messages.items():
            _add_fields(file.message_type.add(name=message), name, table, oneof)
        for service, table in (services or {}).items():
            _add_methods(file.service.add(name=service), name, table)
        self.pool = descriptor_pool.DescriptorPool()
        self.pool.Add(file)
        self._name = name

    def message(self, name: str) -> Any:
        """Return the class of a message."""
        return message_class(self.pool.FindMessageTypeByName(f"{self._name}.{name}"))

    def service(self, name: str) -> Any:
        """Return the descriptor of a service."""
        return self.pool.FindServiceByName(f"{self._name}.{name}")


def message_class(descriptor: Any) -> Any:
    """Return the class of a message."""
    return message_factory.GetMessageClass(descriptor)


def _add_fields(message: Any, package: str, table: str, oneof: str) -> None:
    for number, name, many, kind, star in _FIELD.findall(table):
        added = message.field.add(name=name, number=int(number), label=_MANY if many else _ONE)
        if many == "map ":
            entry = message.nested_type.add(name=f"{name[0].upper()}{name[1:]}Entry")
            entry.options.map_entry = True
            _add_fields(entry, package, f"1 key string; 2 value {kind}", oneof)
            added.type_name = f".{package}.{message.name}.{entry.name}"
        elif kind in _KINDS:
            added.type = _KINDS[kind]
        else:
            added.type_name = f".{package}.{kind}"
        if added.type_name:
            added.type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
        if star:
            if not message.oneof_decl:
                message.oneof_decl.add(name=oneof)
            added.oneof_index = 0


def _add_methods(service: Any, package: str, table: str) -> None:
    for name, request, stream, response in _METHOD.findall(table):
        service.method.add(
            name=name,
            input_type=f".{package}.{request}",
            output_type=f".{package}.{response}",
            server_streaming=bool(stream),
        )
