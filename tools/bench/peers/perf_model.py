"""Stand-in for `aisimulate`, from which Dynamo's planner imports its latency model; runs in NVIDIA's environment.

The wheel `aisimulate` of the public index has no content. Without a profile Dynamo asks it for a regression over
the observed forward passes, and `aiconfigurator-core`, its predecessor, has the same regression, compiled.
"""

import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Self

from aiconfigurator_core.sdk.rust_engine_step import RustForwardPassPerfModel

_OPTIONS = "regression"


@dataclass
class PerfModelConfig:
    """Request for a model, with the fields that Dynamo's planner sets and reads."""

    model: str
    system: str
    backend: str
    worker_type: str
    estimation_mode: str
    tp: int = 1
    pp: int = 1
    estimator_config: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_legacy_engine_config(cls, engine: dict[str, Any], worker_type: str, options: dict[str, Any]) -> Self:
        """Return a request that holds the options of the regression."""
        names = engine["model_name"], engine["system_name"], engine["backend"]
        return cls(*names, worker_type, "fpm_regression", estimator_config={_OPTIONS: options})


class PerfModel(RustForwardPassPerfModel):  # type: ignore[misc]  # not installed where types are checked
    """Regression over the observed forward passes."""

    @classmethod
    def best_available(cls, config: dict[str, Any]) -> Self:
        """Return a model without observations."""
        return cls.from_regression(config["estimator_config"][_OPTIONS])  # type: ignore[no-any-return]


def install() -> None:
    """Make the modules importable that Dynamo imports."""
    _module("aisimulate_core")
    _module("aisimulate_core.sdk", ForwardPassPerfModelConfig=PerfModelConfig, RustForwardPassPerfModel=PerfModel)
    _module("aisimulate")
    _module("aisimulate.runner", canonical_performance_config=lambda config, **role: {**config, **role})


def _module(name: str, **names: object) -> None:
    module = ModuleType(name)
    module.__path__ = []  # a package
    vars(module).update(names)
    sys.modules[name] = module
