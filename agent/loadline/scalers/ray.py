"""Scaler for Ray Serve: workers are the replicas of deployments, scaled by its REST API.

    loadline scaler ray --config ray.toml

The application must have ``external_scaler_enabled``; Ray refuses the calls otherwise. Ray selects the replicas to
stop: those that do not run yet, then those off the head node, on nodes with the fewest replicas, and the newest. That
depends on nodes that its API does not show, so the rule is ``unknown``.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, NoReturn
from urllib.parse import quote

import msgspec
from msgspec import Struct

from loadline.adapters.http_reader import HttpReader, PageUnavailable
from loadline.core.vocabulary.decisions import VictimRule
from loadline.scalers.platform import PlatformError, PoolKey, PoolObservation
from loadline.scalers.ray_config import RayKnobs, RayPoolKnobs, read

__all__ = ["RayServe", "connect", "read"]

_RUNNING: Final = "RUNNING"
_HEALTHY: Final = "HEALTHY"
_ENABLE: Final = "Set external_scaler_enabled: true in its Serve config and deploy it again."
_TOKEN: Final = "Put the token of the cluster into token_file."  # noqa: S105 - a remedy
_NAMES: Final = "Compare application and deployment with the output of `serve status`."
_ADDRESS: Final = "Set address to the URL of Ray's dashboard."
_REMEDIES: Final = {
    401: _TOKEN,
    403: _TOKEN,
    503: "Ray Serve is not running or is recovering: run `serve status`.",
}


class _ServeReplica(Struct):
    state: str = ""


class _ServeDeployment(Struct):
    target_num_replicas: int
    status: str = ""
    message: str = ""
    replicas: list[_ServeReplica] = []


class _ServeApplication(Struct):
    status: str = ""
    message: str = ""
    external_scaler_enabled: bool | None = None
    """None: a version before 2.53, which has no such switch."""
    deployments: dict[str, _ServeDeployment] = {}


class _ServeInstance(Struct):
    applications: dict[str, _ServeApplication] = {}


class _ServeRefusal(Struct):
    error: str = ""


@asynccontextmanager
async def connect(knobs: RayKnobs) -> AsyncIterator["RayServe"]:
    """Yield the platform of a configuration.

    Raises:
        ConfigError: The CA bundle cannot be used.
    """
    async with HttpReader(knobs.timeout_ms / 1_000, token_file=knobs.token_file, ca_file=knobs.ca_file) as http:
        yield RayServe(knobs, http)


class RayServe:
    """Applications of one Ray cluster.

    Args:
        knobs: The configuration.
        http: Client, entered.
    """

    def __init__(self, knobs: RayKnobs, http: HttpReader) -> None:
        self._http = http
        self._address = knobs.address.rstrip("/")
        self._poll_s = knobs.poll_ms / 1_000
        self._announced: Mapping[str, _ServeApplication] = {}
        self._pools = {PoolKey(model.name, pool.name): pool for model in knobs.models for pool in model.pools}
        self._victims: dict[PoolKey, VictimRule] = dict.fromkeys(self._pools, "unknown")

    @property
    def victims(self) -> Mapping[PoolKey, VictimRule]:
        """Configured pools; Ray selects the replicas to stop in each."""
        return self._victims

    async def validate(self) -> Sequence[str]:
        """Return the problems of the applications and deployments."""
        try:
            applications = await self._applications()
        except PlatformError as error:
            return [str(error)]
        problems = (_problem(applications, pool) for pool in self._pools.values())
        return list(dict.fromkeys(problem for problem in problems if problem))

    async def observe(self, pool: PoolKey) -> PoolObservation:
        """Return the replicas of a deployment; Ray does not know the names of workers.

        Raises:
            PlatformError: Ray does not answer, or has no such deployment.
        """
        knobs = self._pools[pool]
        applications = await self._applications()
        application = applications.get(knobs.application)
        deployment = application.deployments.get(knobs.deployment) if application else None
        if application is None or deployment is None:
            raise PlatformError(_problem(applications, knobs))
        ready = sum(replica.state == _RUNNING for replica in deployment.replicas)
        # Ray 2.60 calls a deployment healthy whose replicas wait for resources, and keeps the message afterwards.
        missing = deployment.status != _HEALTHY or ready < deployment.target_num_replicas
        message = deployment.message or application.message if missing else ""
        return PoolObservation(deployment.target_num_replicas, ready, detail=" ".join(message.split()))

    async def set_replicas(self, pool: PoolKey, replicas: int) -> None:
        """Ask for ``replicas``.

        Raises:
            PlatformError: Ray refused or did not answer.
        """
        knobs = self._pools[pool]
        path = f"applications/{quote(knobs.application, safe='')}/deployments/{quote(knobs.deployment, safe='')}/scale"
        try:
            await self._http.post(f"{self._address}/api/v1/{path}", {"target_num_replicas": replicas})
        except PageUnavailable as error:
            self._refused(_named(knobs), error)

    async def prefer_removal(self, pool: PoolKey, workers: Sequence[str]) -> None:
        """Refuse.

        Raises:
            PlatformError: Always: Ray selects the replicas itself.
        """
        raise PlatformError(f"{_named(self._pools[pool])}: Ray selects the replicas to stop, not {', '.join(workers)}.")

    async def changed(self) -> None:
        """Read the state at intervals, since Ray's API has no watch, until it has changed or cannot be read."""
        while True:
            await asyncio.sleep(self._poll_s)
            try:
                found = await self._applications()
            except PlatformError:
                return
            # The state of the last call, not that of the last read: an observation of one pool reads all of them.
            if found != self._announced:
                self._announced = found
                return

    async def _applications(self) -> Mapping[str, _ServeApplication]:
        try:
            page = await self._http.get(f"{self._address}/api/serve/applications/")
            return msgspec.json.decode(page, type=_ServeInstance).applications
        except PageUnavailable as error:
            self._refused(f"Ray at {self._address}", error, missing=_ADDRESS)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            problem = f"Ray at {self._address}: its answer is not the state of Ray Serve: {error}."
            raise PlatformError(f"{problem} {_ADDRESS}") from error

    def _refused(self, place: str, error: PageUnavailable, missing: str = _NAMES) -> NoReturn:
        """Raise the error of a call, with its remedy: ``missing`` for a path that does not exist.

        Ray answers 412 both without ``external_scaler_enabled`` and for a deployment that is being deleted.
        """
        text = _reason(error)
        if error.status == 412:  # noqa: PLR2004 - Precondition Failed
            remedy = _ENABLE if "external_scaler_enabled" in text else "Deploy the application again."
        elif error.status == 404:  # noqa: PLR2004 - Not Found
            remedy = missing
        elif error.status:
            remedy = _REMEDIES.get(error.status, "See the log of Ray's dashboard.")
        elif error.reason == "token_file":
            remedy = "Name a readable file in token_file."
        else:
            remedy = f"Start Ray. {_ADDRESS}"
        raise PlatformError(f"{place}: {text.rstrip('.')}. {remedy}") from error


def _reason(error: PageUnavailable) -> str:
    """Return what an answer says: Ray wraps most reasons in JSON, but not those about tokens."""
    if not error.body:
        return error.detail
    try:
        text = msgspec.json.decode(error.body, type=_ServeRefusal).error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        text = error.body.decode("utf-8", "replace")
    return f"{error.detail}: {' '.join(text.split())}" if text else error.detail


def _named(pool: RayPoolKnobs) -> str:
    return f"deployment {pool.deployment} of application {pool.application}"


def _problem(applications: Mapping[str, _ServeApplication], pool: RayPoolKnobs) -> str:
    """Return the problem of a pool's deployment; empty: there is none."""
    application = applications.get(pool.application)
    if application is None:
        known = ", ".join(sorted(applications)) or "none"
        return f"application {pool.application}: it does not exist (there are: {known}). Deploy it with `serve deploy`."
    if pool.deployment not in application.deployments:
        known = ", ".join(sorted(application.deployments)) or "none"
        return f"{_named(pool)}: it does not exist (there are: {known}). {_NAMES}"
    if application.external_scaler_enabled is False:
        return f"application {pool.application}: Ray refuses external scaling. {_ENABLE}"
    return ""
