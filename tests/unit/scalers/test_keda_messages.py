"""Messages of KEDA's external scalers: the same names, numbers and types as in KEDA's interface."""

import hashlib
from collections.abc import Iterator
from typing import Any

from google.protobuf import descriptor_pb2

from loadline.adapters.protobuf_tables import message_class
from loadline.scalers.keda_messages import SERVICE, GetMetricSpecResponse, GetMetricsResponse, MetricSpec, MetricValue

OF_KEDA = "5d2a59f6ca7f16e4e84d278ed205c925eaf9749ab94d595772baf7b297c40dae"
"""Digest of the same lines of the compiled externalscaler.proto of KEDA's commit 8b4f083c (2026-08-20, before 2.21)."""


def interface() -> Iterator[str]:
    """Yield a line for each field and method."""
    file = descriptor_pb2.FileDescriptorProto.FromString(SERVICE.file.serialized_pb)
    for message in file.message_type:
        yield from fields(message, "")
    for service in file.service:
        for method in service.method:
            yield f"{service.name}.{method.name} {method.input_type} {method.output_type} {method.server_streaming}"


def fields(message: Any, outer: str) -> Iterator[str]:
    for field in message.field:
        yield f"{outer}{message.name}.{field.name} {field.number} {field.type} {field.label} {field.type_name}"
    for nested in message.nested_type:
        yield from fields(nested, f"{message.name}.")


def test_the_interface_is_that_of_keda() -> None:
    lines = sorted(interface())
    assert len(lines) == 21
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest() == OF_KEDA


def test_bytes_on_the_wire_are_those_that_keda_reads() -> None:
    """The bytes are written down by hand: tag, length, content."""
    name = b"\x0a\x01m"
    one = b"\x19" + b"\x00\x00\x00\x00\x00\x00\xf0\x3f"
    spec = GetMetricSpecResponse(metricSpecs=[MetricSpec(metricName="m", targetSize=1, targetSizeFloat=1)])
    values = GetMetricsResponse(metricValues=[MetricValue(metricName="m", metricValue=1, metricValueFloat=1)])
    inner = name + b"\x10\x01" + one
    assert spec.SerializeToString() == values.SerializeToString() == b"\x0a" + bytes([len(inner)]) + inner
    reference = b"\x0a\x01n\x12\x02ns\x1a\x0a\x0a\x05model\x12\x01l"
    [is_active] = [method for method in SERVICE.methods if method.name == "IsActive"]
    parsed = message_class(is_active.input_type).FromString(reference)
    assert (parsed.name, parsed.namespace, dict(parsed.scalerMetadata)) == ("n", "ns", {"model": "l"})
