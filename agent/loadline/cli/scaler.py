"""Command ``scaler``."""

import argparse
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from loadline.adapters import logs
from loadline.cli import event_loop, output
from loadline.cli.exit_codes import FAILED
from loadline.cli.extras import require_extra
from loadline.cli.option_types import seconds, whole_number
from loadline.core.vocabulary.scalars import WORKERS_MAX
from loadline.errors import ConfigError
from loadline.scalers import platform_commands as commands
from loadline.scalers.platform import Platform, PoolKey, PoolObservation


class _Scaler(Struct, frozen=True):
    """A scaler: a program of its own (``serve``), a platform with the functions ``read`` and ``connect``, or both."""

    text: str
    serve: str = ""
    platform: str = ""
    packages: tuple[str, ...] = ()
    has_sidecars: bool = False
    """True if its ``serve`` and ``read`` take ``sidecar``, to start each worker in one."""


class PlatformPool(Struct, frozen=True):
    """Replicas of a pool, as a platform has them."""

    model: str
    pool: str
    replicas: int
    ready: int | None
    """None: the platform does not tell."""
    workers: int | None
    """Number of known workers; None: the platform does not tell."""
    detail: str


class ValidateResult(Struct, frozen=True):
    """Result of ``loadline scaler NAME validate``."""

    problems: list[str]
    """Sentences, each with its remedy; none: the deployment can be scaled."""


class ChangeResult(Struct, frozen=True):
    """Result of ``set``, ``add`` and ``remove`` of ``loadline scaler NAME``."""

    model: str
    pool: str
    requested: int
    """Replicas that are requested now."""
    late: list[PlatformPool]
    """The pool if its replicas were not ready within ``--wait``."""


_SCALERS: Final = {
    "circus": _Scaler(
        "workers are processes of circusd on this host",
        serve="local.circus.serve",
        platform="local.circus",
        packages=("zmq",),
        has_sidecars=True,
    ),
    "dynamo-virtual": _Scaler(
        "a program with Dynamo's VirtualConnectorClient applies decisions",
        serve="dynamo_virtual.serve",
        platform="dynamo_actions",
    ),
    "exec": _Scaler("your command sets the replicas", platform="exec"),
    "keda": _Scaler(
        "KEDA gets the desired replicas from it",
        serve="keda.serve",
        packages=("grpc", "grpc_health", "grpc_reflection", "google.protobuf"),
    ),
    "kubernetes": _Scaler("workers are pods", platform="kubernetes", packages=("lightkube",)),
    "local": _Scaler(
        "workers are processes of this host", serve="local.serve.serve", platform="local.actions", has_sidecars=True
    ),
    "observed": _Scaler("another autoscaler applies the decisions", serve="observed.serve"),
    "ray": _Scaler("workers are replicas of Ray Serve", platform="ray"),
}

_WAIT_MAX_S: Final = 86_400.0
_WITH_POOL: Final = {"set": "request N replicas", "add": "request N more", "remove": "request N fewer"}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``scaler``."""
    texts = "; ".join(f"{name}: {each.text}" for name, each in _SCALERS.items())
    parser.add_argument("name", choices=tuple(_SCALERS), help=texts)
    _add_options(parser)
    actions = parser.add_subparsers(
        dest="action", metavar="ACTION", parser_class=argparse.ArgumentParser, help="default: run"
    )

    def add(name: str, text: str) -> argparse.ArgumentParser:
        action = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        _add_options(action)
        return action

    add("run", "apply decisions until stopped by a signal")
    output.arguments(add("validate", "print the problems of the deployment, each with its remedy"))
    _add_wait(add("status", "print the replicas of each pool"))
    for name, text in _WITH_POOL.items():
        action = add(name, text)
        action.add_argument("model", metavar="MODEL", help="name of the model")
        action.add_argument("pool", metavar="POOL", help="name of the pool")
        action.add_argument("count", metavar="N", type=whole_number(WORKERS_MAX, 0), help="number of replicas")
        _add_wait(action)


def _add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that may stand before and after the action; the latter must not reset the former."""
    text = "configuration of the scaler; for observed, that of the agent (TOML)"
    parser.add_argument("--config", type=Path, default=argparse.SUPPRESS, metavar="FILE", help=text)
    text = "only this model; repeatable"
    parser.add_argument("--model", dest="models", action="append", default=argparse.SUPPRESS, metavar="NAME", help=text)
    text = "local and circus: start each worker in a sidecar, as sidecar = true of its pool does"
    parser.add_argument("--sidecar", action="store_true", default=argparse.SUPPRESS, help=text)


def _add_wait(parser: argparse.ArgumentParser) -> None:
    output.arguments(parser)
    text = "wait until all requested replicas are ready, at most S seconds"
    parser.add_argument("--wait", type=seconds(_WAIT_MAX_S), metavar="S", help=text)


def scaler(options: argparse.Namespace) -> int:
    """Apply decisions until stopped by a signal, or carry out one action."""
    if "config" not in options:
        raise ConfigError("--config", "it is missing", "Name the configuration: --config FILE.")
    chosen, only = _SCALERS[options.name], options.models if "models" in options else []
    require_extra("scaler", options.name, chosen.packages)
    if "sidecar" in options and not chosen.has_sidecars:
        raise ConfigError("--sidecar", f"{options.name} starts no engines", "Leave it out.")
    action = options.action or "run"
    if only and action in (*_WITH_POOL, "validate"):
        raise ConfigError("--model", f"has no effect on {action}", "Leave it out.")
    if action == "run":
        logs.configure("auto", "info")
    sidecars = {"sidecar": "sidecar" in options} if chosen.has_sidecars else {}
    if action == "run" and chosen.serve:
        event_loop.run(_function(chosen.serve)(options.config, only, **sidecars))
        return 0
    if not chosen.platform:
        raise ConfigError(action, f"{options.name} has no such action", "It can only run.")
    knobs = _function(f"{chosen.platform}.read")(options.config, **sidecars)
    connect = _function(f"{chosen.platform}.connect")
    return event_loop.run(_carry_out(connect, knobs, action, options, only))


async def _carry_out(
    connect: Callable[[Any], AbstractAsyncContextManager[Platform]],
    knobs: Any,
    action: str,
    options: argparse.Namespace,
    only: Sequence[str],
) -> int:
    async with connect(knobs) as platform:
        if action == "run":
            await commands.run_scaler(knobs, knobs.name, platform, only)
            return 0
        if action == "validate":
            problems = await platform.validate()
            text = "\n".join(problems) or "the deployment can be scaled"
            output.print_result(options, ValidateResult(list(problems)), text)
            return FAILED if problems else 0
        if action == "status":
            return await _print_status(platform, only, options)
        return await _change(platform, action, PoolKey(options.model, options.pool), options)


async def _print_status(platform: Platform, only: Sequence[str], options: argparse.Namespace) -> int:
    wait_s: float | None = options.wait
    states = await commands.observe_all(platform, only)
    late = await commands.wait_ready(platform, list(states), wait_s) if wait_s is not None else {}
    states = await commands.observe_all(platform, only) if wait_s is not None else states
    pools = [_state(key, seen) for key, seen in states.items()]
    rows = [("model", "pool", "replicas", "ready", "workers", "detail"), *map(_cells, pools)]
    output.print_result(options, pools, output.table(rows))
    return FAILED if late else 0


async def _change(platform: Platform, action: str, pool: PoolKey, options: argparse.Namespace) -> int:
    if action == "set":
        replicas = await commands.set_replicas(platform, pool, options.count)
    else:
        difference = options.count if action == "add" else -options.count
        replicas = await commands.change_replicas(platform, pool, difference)
    late = {} if options.wait is None else await commands.wait_ready(platform, [pool], options.wait)
    result = ChangeResult(pool.model, pool.pool, replicas, [_state(key, seen) for key, seen in late.items()])
    lines = [f"{pool.model} {pool.pool}: {replicas} replicas requested"]
    for one in result.late:
        ready = "" if one.ready is None else f", {one.ready} ready"
        lines.append(f"not ready after {options.wait:g} s: {one.replicas} replicas{ready} {one.detail}".rstrip())
    output.print_result(options, result, "\n".join(lines))
    return FAILED if late else 0


def _state(key: PoolKey, seen: PoolObservation) -> PlatformPool:
    workers = None if seen.workers is None else len(seen.workers)
    return PlatformPool(key.model, key.pool, seen.replicas, seen.ready, workers, seen.detail)


def _cells(pool: PlatformPool) -> tuple[str, ...]:
    counts = ("-" if count is None else str(count) for count in (pool.replicas, pool.ready, pool.workers))
    return (pool.model, pool.pool, *counts, pool.detail)


def _function(path: str) -> Callable[..., Any]:
    """Import a function of a scaler: only the chosen one may need its packages."""
    module, _, name = path.rpartition(".")
    function: Callable[..., Any] = getattr(import_module(f"loadline.scalers.{module}"), name)
    return function
