"""Messages and methods of KEDA's external scalers, the service ``externalscaler.ExternalScaler``.

Names and numbers are those of KEDA's interface (Apache-2.0), as of KEDA 2.21. ``StreamMetricSpec`` and the fields of
type double are newer than the rest, and older versions of KEDA ignore them.
"""

from typing import Final

from loadline.adapters.protobuf_tables import ProtobufPackage

_MESSAGES: Final = {
    "ScaledObjectRef": "1 name string; 2 namespace string; 3 scalerMetadata map string",
    "IsActiveResponse": "1 result bool",
    "GetMetricSpecResponse": "1 metricSpecs repeated MetricSpec",
    "MetricSpec": "1 metricName string; 2 targetSize int64; 3 targetSizeFloat double",
    "GetMetricsRequest": "1 scaledObjectRef ScaledObjectRef; 2 metricName string",
    "GetMetricsResponse": "1 metricValues repeated MetricValue",
    "MetricValue": "1 metricName string; 2 metricValue int64; 3 metricValueFloat double",
}
_METHODS: Final = """
IsActive ScaledObjectRef IsActiveResponse;
StreamIsActive ScaledObjectRef stream IsActiveResponse;
GetMetricSpec ScaledObjectRef GetMetricSpecResponse;
GetMetrics GetMetricsRequest GetMetricsResponse;
StreamMetricSpec ScaledObjectRef stream GetMetricSpecResponse
"""
_PACKAGE: Final = ProtobufPackage("externalscaler", _MESSAGES, {"ExternalScaler": _METHODS})

SERVICE: Final = _PACKAGE.service("ExternalScaler")
IsActiveResponse: Final = _PACKAGE.message("IsActiveResponse")
GetMetricSpecResponse: Final = _PACKAGE.message("GetMetricSpecResponse")
GetMetricsResponse: Final = _PACKAGE.message("GetMetricsResponse")
MetricSpec: Final = _PACKAGE.message("MetricSpec")
MetricValue: Final = _PACKAGE.message("MetricValue")
