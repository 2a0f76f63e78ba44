"""Warnings on HorizontalPodAutoscalers and KEDA's ScaledObjects that follow the desired replicas of pools."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from loadline.config.knobs import Config
from loadline.errors import ConfigError

AUTOSCALERS_BYTES_MAX: Final = 16_777_216
CREATED_BY: Final = "scaledobject.keda.sh/name"
"""Label of an HPA that KEDA created: the name of its ScaledObject."""
_EXACT_MAX: Final = 9
"""Replicas up to which a difference of one is more than the tolerance of 10 %: an HPA takes 9 to 8, but not 10 to 9."""
_OPTION: Final = "--autoscalers"

Manifest = Mapping[str, Any]


def read_autoscalers(data: bytes) -> list[Manifest]:
    """Return the objects that ``kubectl get -o json`` printed, without those of other kinds.

    Raises:
        ConfigError: The data is not a list of objects in JSON.
    """
    remedy = "Give the output of: kubectl get hpa,scaledobjects -A -o json"
    if len(data) > AUTOSCALERS_BYTES_MAX:
        raise ConfigError(_OPTION, f"has more than {AUTOSCALERS_BYTES_MAX} bytes", remedy)
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(_OPTION, f"is not JSON: {error}", remedy) from error
    if not isinstance(_at(found, "kind"), str):
        raise ConfigError(_OPTION, "has no Kubernetes object", remedy)
    kinds = ("HorizontalPodAutoscaler", "ScaledObject")
    return [one for one in [found, *_listed(_at(found, "items"))] if _at(one, "kind") in kinds]


def tolerance_warnings(config: Config, autoscalers: Sequence[Manifest]) -> Iterator[str]:
    """Warn of pools of more than 9 replicas whose autoscaler ignores differences of up to 10 %.

    The HPA that KEDA created counts more than its ScaledObject: API servers drop a tolerance that they do not know.
    """
    most = {(model.name, pool.name): pool.replicas_max for model in config.models for pool in model.pools}
    created = {(_namespace(one), str(_at(one, "metadata", "labels", CREATED_BY))): one for one in autoscalers}
    for one in autoscalers:
        own = _at(one, "spec", "behavior") or _at(one, "spec", "advanced", "horizontalPodAutoscalerConfig", "behavior")
        name = str(_at(one, "metadata", "name"))
        hpa = created.get((_namespace(one), name)) if one["kind"] == "ScaledObject" else None
        behavior = own if hpa is None else _at(hpa, "spec", "behavior")
        missing = [way for way in ("scaleUp", "scaleDown") if not _is_zero(_at(behavior, way, "tolerance"))]
        for model, pool in sorted(_pools(one)):
            if missing and most.get((model, pool), 0) > _EXACT_MAX:
                dropped = "The API server did not keep it. " if hpa is not None and own != behavior else ""
                yield (
                    f"{one['kind']} {_namespace(one)}/{name}: an HPA ignores differences of up to 10 %, such as 12 "
                    f"replicas instead of 11, and replicas_max of pool {pool} of model {model} is {most[model, pool]}. "
                    f'{dropped}Set tolerance: "0" in {" and ".join(missing)} of its behavior, with Kubernetes 1.35, or '
                    "1.33 with the feature gate HPAConfigurableTolerance."
                )


def _pools(one: Manifest) -> set[tuple[str, str]]:
    """Return model and pool of each metric of an HPA, or of each trigger of a ScaledObject."""
    metrics, triggers = (_at(one, "spec", part) for part in ("metrics", "triggers"))
    named = [_at(metric, "external", "metric", "selector", "matchLabels") for metric in _listed(metrics)]
    named += [_at(trigger, "metadata") for trigger in _listed(triggers)]
    pairs = ((_at(names, "model"), _at(names, "pool")) for names in named)
    return {(model, pool) for model, pool in pairs if isinstance(model, str) and isinstance(pool, str)}


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _namespace(one: Manifest) -> str:
    return str(_at(one, "metadata", "namespace") or "default")


def _is_zero(quantity: object) -> bool:
    try:
        return float(str(quantity).removesuffix("m")) == 0
    except ValueError:
        return False


def _at(value: object, *path: str) -> Any:
    """Return the value at a path; None: there is none."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value
