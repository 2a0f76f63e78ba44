"""Configuration file of the Kubernetes scaler: the object whose replicas are a pool's workers."""

from collections.abc import Mapping
from os import environ
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from loadline.core.vocabulary.decisions import VictimRule
from loadline.core.vocabulary.scalars import Name
from loadline.errors import ConfigError
from loadline.scalers.config_file import ScalerKnobs, ScalerName, check_names, pools_by_place, read_as
from loadline.servers import Knobs

GRAPH_DEPLOYMENT: Final = "DynamoGraphDeployment"
STORM_SERVICE: Final = "StormService"
_GRAPH_DEPLOYMENT_ENV: Final = "DYN_PARENT_DGD_K8S_NAME"

_NAME_PATTERN: Final = r"^$|^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$"


class KindDefaults(Struct, frozen=True):
    """Usual values of a kind's keys."""

    api_version: str
    victims: VictimRule = "unknown"


# A ReplicaSet can be told which pods to remove. The operators of the last three cannot, and do not say which go.
KINDS: Final[Mapping[str, KindDefaults]] = {
    "Deployment": KindDefaults("apps/v1", "named"),
    "StatefulSet": KindDefaults("apps/v1", "highest_ordinal"),
    "LeaderWorkerSet": KindDefaults("leaderworkerset.x-k8s.io/v1", "highest_ordinal"),
    "DynamoGraphDeploymentScalingAdapter": KindDefaults("nvidia.com/v1beta1"),
    GRAPH_DEPLOYMENT: KindDefaults("nvidia.com/v1beta1"),
    STORM_SERVICE: KindDefaults("orchestration.aibrix.ai/v1alpha1"),
}
ORDINAL_KINDS: Final = {kind for kind, usual in KINDS.items() if usual.victims == "highest_ordinal"}


class KubernetesPoolKnobs(Knobs, frozen=True):
    """Object whose replicas are the workers of a pool."""

    name: Name
    kind: Annotated[str, Meta(pattern=r"^[A-Z][A-Za-z0-9]{0,62}$", description="Kind of the object.")]
    object: Annotated[
        str,
        Meta(max_length=253, description=f"Its name; empty: ${_GRAPH_DEPLOYMENT_ENV} (DynamoGraphDeployment only)."),
    ] = ""
    namespace: Annotated[str, Meta(pattern=_NAME_PATTERN, description="Its namespace; empty: that of the file.")] = ""
    api_version: Annotated[
        str,
        Meta(pattern=r"^$|^[a-z0-9.-]+/[a-z0-9]+$", description="Its group and version; known kinds have a default."),
    ] = ""
    plural: Annotated[
        str, Meta(pattern=r"^[a-z0-9-]*$", description="Its kind in URLs; empty: in lower case with an s.")
    ] = ""
    path: Annotated[
        str,
        Meta(
            pattern=r"^$|^[A-Za-z0-9_-]+(\[name=[A-Za-z0-9_.-]+\])?(\.[A-Za-z0-9_-]+(\[name=[A-Za-z0-9_.-]+\])?)*$",
            description="Place of the count in the object, for kinds without /scale.",
        ),
    ] = ""
    sub_component_type: Annotated[
        Literal["", "prefill", "decode"], Meta(description="Service of a DynamoGraphDeployment, by its type.")
    ] = ""
    service: Annotated[
        str, Meta(max_length=253, description="Service of a DynamoGraphDeployment that has no such type, by name.")
    ] = ""
    victims: Annotated[
        Literal["", "named", "highest_ordinal", "unknown"],
        Meta(description="Rule by which the controller selects pods; empty: the kind's."),
    ] = ""
    pod_selector: Annotated[
        str, Meta(max_length=1_024, description="Labels of the workers' pods; empty: the selector that /scale reports.")
    ] = ""
    worker_label: Annotated[
        str, Meta(max_length=317, description="Label of a pod that holds its worker's name; empty: the pod's name.")
    ] = ""
    gpus_per_worker: Annotated[
        int, Meta(ge=0, le=4_096, description="GPUs of one replica, which validate compares; 0: not compared.")
    ] = 0

    @property
    def rule(self) -> VictimRule:
        """Rule by which the controller selects the pods to remove."""
        if self.victims:
            return self.victims
        return KINDS[self.kind].victims if self.kind in KINDS else "unknown"


class KubernetesModelKnobs(Knobs, frozen=True):
    """Model and its pools."""

    name: Name
    pools: Annotated[tuple[KubernetesPoolKnobs, ...], Meta(min_length=1, max_length=64)]


class KubernetesKnobs(ScalerKnobs, frozen=True):
    """Configuration file of the Kubernetes scaler."""

    models: Annotated[tuple[KubernetesModelKnobs, ...], Meta(min_length=1, max_length=1024)]
    name: ScalerName = "kubernetes"
    kubeconfig: Annotated[
        str, Meta(description="File with server and login; empty: the pod's service account, then $KUBECONFIG.")
    ] = ""
    namespace: Annotated[
        str, Meta(pattern=_NAME_PATTERN, description="Namespace of objects; empty: that of the login.")
    ] = ""


def read(path: Path) -> KubernetesKnobs:
    """Read a TOML file.

    Raises:
        ConfigError: The file cannot be read or is invalid.
    """
    return read_as(KubernetesKnobs, path, _checked)


def _checked(knobs: KubernetesKnobs) -> KubernetesKnobs:
    """Return a configuration whose values do not contradict each other.

    Raises:
        ConfigError: They do.
    """
    check_names(knobs.models)
    objects: dict[tuple[str, ...], str] = {}
    for place, pool in pools_by_place(knobs.models):
        _check(place, pool)
        part = pool.path or pool.sub_component_type or pool.service
        scaled = (pool.namespace or knobs.namespace, pool.kind, object_name(pool), part)
        other = objects.setdefault(scaled, place)
        if other != place:
            raise ConfigError(place, f"{other} scales the same object", "Give each pool an object of its own.")
    return knobs


def object_name(pool: KubernetesPoolKnobs) -> str:
    """Return the name of a pool's object."""
    return pool.object or (environ.get(_GRAPH_DEPLOYMENT_ENV, "") if pool.kind == GRAPH_DEPLOYMENT else "")


def _check(place: str, pool: KubernetesPoolKnobs) -> None:
    """Check the keys of a pool against its kind."""
    if not object_name(pool):
        also = f", or the variable {_GRAPH_DEPLOYMENT_ENV}" if pool.kind == GRAPH_DEPLOYMENT else ""
        raise ConfigError(f"{place}.object", "is missing", f"Name the {pool.kind}{also}.")
    if not pool.api_version and pool.kind not in KINDS:
        problem = f"is missing, and {pool.kind} has no default"
        raise ConfigError(f"{place}.api_version", problem, "Write group/version, such as apps/v1.")
    if pool.kind == STORM_SERVICE and not pool.path:
        remedy = 'Name the role: path = "spec.template.spec.roles[name=decode].replicas".'
        raise ConfigError(f"{place}.path", "is missing, and a StormService has no /scale", remedy)
    selects_service = bool(pool.sub_component_type or pool.service)
    if selects_service != (pool.kind == GRAPH_DEPLOYMENT):
        problem = f"one is needed for a {GRAPH_DEPLOYMENT}, and no other kind has services"
        raise ConfigError(f"{place}.sub_component_type and service", problem, "Correct the kind or these keys.")
    if pool.victims == "named" and pool.kind in ORDINAL_KINDS:
        problem = f"is named, and the controller of a {pool.kind} removes the highest ordinal"
        raise ConfigError(f"{place}.victims", problem, "Remove the key.")
