"""Conditions of a model."""

from typing import Literal

from msgspec import Struct

ConditionName = Literal["MetricsAvailable", "OptimizationReady", "DemandWithinMaximum"]
ConditionReason = Literal[
    "MetricsFound",
    "MetricsMissing",
    "MetricsStale",
    "OptimizationSucceeded",
    "OptimizationFailed",
    "MetricsUnavailable",
    "InvalidConfiguration",
    "SkippedProcessing",
    "ResourceConstrained",
    "CapacitySafetyOverride",
    "CapacityOnlyMode",
    "WithinMaximum",
    "AboveMaximum",
]


class Condition(Struct, frozen=True):
    """Condition of a model, in the style of Kubernetes.

    Names and reasons are those of llm-d's VariantAutoscaling, except for ``DemandWithinMaximum``.
    """

    name: ConditionName
    status: bool
    reason: ConditionReason
    message: str
    """Description and remedy, for people."""
    since_ms: int
    """Time of the last change of ``status``, in Unix ms."""
