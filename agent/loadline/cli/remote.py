"""Commands that query or command a running agent: status, explain, drain, pause, resume."""

import argparse
import getpass
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from msgspec import Struct

from loadline.adapters import logs
from loadline.adapters.nats_bus import NatsBus
from loadline.cli import event_loop, journal
from loadline.cli.exit_codes import FAILED
from loadline.cli.explain_output import format_explanation, format_policy_report
from loadline.cli.output import print_result, printable
from loadline.cli.shared_models import merge_agents, merge_explanations
from loadline.cli.status_output import format_statuses
from loadline.config import load
from loadline.core.vocabulary.reasons import Explanation
from loadline.core.vocabulary.status import AgentStatus
from loadline.errors import BusUnavailable, LoadlineError
from loadline.runtime.status_parts import join_status
from loadline.servers import NatsKnobs, check_server
from loadline.toml.connection import is_connection, load_connection
from loadline.wire.codec import Rejected, decode_as, encode
from loadline.wire.messages import DrainOrder, ExplainReply, ExplainRequest, OperatorReply, PauseCommand, StatusRequest
from loadline.wire.subjects import Subjects

TIMEOUT_S: Final = 2.0
STATUS_PARTS_MAX: Final = 64
"""Parts of a status that are asked for: 64 parts have 12 MiB."""
_OPERATOR_CHARS_MAX: Final = 64

T = TypeVar("T", bound=Struct)


def status(options: argparse.Namespace) -> int:
    """Print the status of the fleet."""
    target = target_of(options)
    agents = event_loop.run(_statuses(target))
    return _print(options, merge_agents(agents), format_statuses(agents, only_migration=bool(target.only)))


def explain(options: argparse.Namespace) -> int:
    """Print the inputs, recommendations, limits and result of decisions, and the reports of migration policies."""
    if options.journal is not None:
        found = journal.explain(options.journal, options.decision, options.model)
    else:
        request = ExplainRequest(decision_id=options.decision, model=options.model)
        found = event_loop.run(_explain(target_of(options), request))
    texts = [*map(format_explanation, found.explanations), *map(format_policy_report, found.migrations)]
    if not texts:
        of_model = f"model {options.model}" if options.model else "any model"
        name = f"decision {options.decision}" if options.decision else of_model
        there = "a journal may have it: --journal PATH"
        if options.journal is not None:
            there = (
                f"loadline history --journal {options.journal} lists all decisions of the journal with their reasons"
            )
        print(f"loadline: no record of {name}; {there}", file=sys.stderr)
        return FAILED
    return _print(options, found, "\n\n".join(texts))


def explanations(options: argparse.Namespace, model: str) -> list[Explanation]:
    """Return the explanations that the leader remembers, newest first: of decisions, and of the newest holds."""
    request = ExplainRequest(model=model, earlier=True)
    return event_loop.run(_explain(target_of(options), request)).explanations


def drain(options: argparse.Namespace) -> int:
    """Order the leader to drain a worker."""
    order = DrainOrder(options.model, options.pool, options.worker, operator())
    return _order(options, "drain", order, f"{options.worker} will be drained; follow it with `loadline status`")


def pause(options: argparse.Namespace) -> int:
    """Pause decisions and migrations for a model."""
    done = f"{options.model} is paused: no scaling decisions, no migrations"
    return _order(options, "pause", PauseCommand(options.model, operator()), done)


def resume(options: argparse.Namespace) -> int:
    """Resume decisions and migrations for a model."""
    done = f"{options.model} is resumed: scaling decisions and migrations continue"
    return _order(options, "resume", PauseCommand(options.model, operator()), done)


def operator() -> str:
    """Return the name of the user; a container's user may have none."""
    try:
        return getpass.getuser()[:_OPERATOR_CHARS_MAX]
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def _order(options: argparse.Namespace, method: str, order: Struct, done: str) -> int:
    reply = _request(options, method, encode(order), OperatorReply)
    if not reply.accepted:
        print(f"loadline: {printable(reply.detail)}", file=sys.stderr)
        return FAILED
    return _print(options, reply, done)


def _print(options: argparse.Namespace, answer: Struct, text: str) -> int:
    print_result(options, answer, text)
    return 0


class Target(Struct, frozen=True):
    """Agent that a command is sent to: its NATS servers, its subject root, and its mode."""

    nats: NatsKnobs
    root: str
    only: str


def target_of(options: argparse.Namespace) -> Target:
    """Return the agent that the options name.

    Raises:
        ConfigError: An option or the configuration is invalid.
    """
    if options.nats:
        check_server(options.nats, "--nats", ("nats", "tls"))
    path = options.config
    if path is not None and not is_connection(path):
        load(path)  # operators have a file with their login; an agent's is checked as a whole
    found = load_connection(path, servers={"nats": options.nats or None})  # nobody here asks etcd
    # A drain is an order for the agent that scales.
    only = (options.only or found.agent.only) if "only" in options else ""
    return Target(found.nats, options.root or found.agent.root, only)


def _request(options: argparse.Namespace, method: str, payload: bytes, kind: type[T]) -> T:
    target = target_of(options)
    return event_loop.run(_exchange(target, method, payload, kind))


def _remedy(method: str, only: str) -> str:
    """Suggest what to do when no agent answers: every agent answers status, only the leader the other methods."""
    if method != "status":
        return f"Is an agent running and leading? Check with `loadline status{f' --only {only}' if only else ''}`."
    return "Start one." if only else "Start one, or add --only migration if only that agent runs."


async def _statuses(target: Target) -> list[AgentStatus]:
    logs.configure("auto", "error")
    async with connected(target) as bus:
        return await ask_statuses(bus, target)


async def _explain(target: Target, request: ExplainRequest) -> ExplainReply:
    logs.configure("auto", "error")
    async with connected(target) as bus:
        first = await ask(bus, target, "explain", encode(request), ExplainReply)
        if request.model or not first.shared:
            return first
        leaders = sum(agent.leading for agent in await ask_statuses(bus, target))
        return merge_explanations(await ask_all(bus, target, "explain", encode(request), ExplainReply, leaders))


async def _exchange(target: Target, method: str, payload: bytes, kind: type[T]) -> T:
    logs.configure("auto", "error")  # a failed connection is reported below, once
    async with connected(target) as bus:
        return await ask(bus, target, method, payload, kind)


@asynccontextmanager
async def connected(target: Target) -> AsyncIterator[NatsBus]:
    """Connect to the NATS server of an agent.

    Raises:
        LoadlineError: The server does not accept the connection.
    """
    bus = NatsBus(target.nats, name="loadline cli")
    try:
        await bus.connect(lambda _connected: None)
        if not bus.connected:
            servers = ", ".join(target.nats.servers)
            remedy = "Name the server: --nats URL or --config FILE"
            raise LoadlineError(f"cannot connect to NATS at {servers}: {bus.last_error}. {remedy}")
        yield bus
    finally:
        await bus.close()


async def ask(bus: NatsBus, target: Target, method: str, payload: bytes, kind: type[T]) -> T:
    """Send a request to an agent and return its answer.

    Raises:
        LoadlineError: No agent answers, or the answer is invalid.
    """
    subject = Subjects(target.root).api(method, target.only)
    try:
        data = await bus.request(subject, payload, TIMEOUT_S)
    except BusUnavailable as error:
        if bus.denied:
            denied = f"NATS refuses a request on {subject}: {bus.last_error}"
            raise LoadlineError(f"{denied}. Use a login that may send queries, such as operator") from error
        raise LoadlineError(f"no agent answers on {subject}: {error}. {_remedy(method, target.only)}") from error
    answer = decode_as(kind, data)
    if isinstance(answer, Rejected):
        refusal = decode_as(OperatorReply, data)
        detail = answer.detail if isinstance(refusal, Rejected) else refusal.detail
        raise LoadlineError(f"invalid answer from the agent on {subject}: {detail}")
    return answer


async def ask_all(  # noqa: PLR0917 - as for one agent, and the number of answers
    bus: NatsBus, target: Target, method: str, payload: bytes, kind: type[T], answers_max: int
) -> list[T]:
    """Send a request to all agents and return their valid answers, of which there are ``answers_max`` if all answer.

    Raises:
        LoadlineError: NATS is not connected.
    """
    replies = await bus.request_all(Subjects(target.root).api(method, target.only), payload, answers_max, TIMEOUT_S)
    answers = (decode_as(kind, reply) for reply in replies)
    return [answer for answer in answers if not isinstance(answer, Rejected)]


async def ask_statuses(bus: NatsBus, target: Target) -> list[AgentStatus]:
    """Return the status of the leader, or those of all agents, by name, if they share the models.

    Raises:
        LoadlineError: No agent answers, or the answer is invalid.
    """
    first = await ask(bus, target, "status", encode(StatusRequest()), AgentStatus)
    if first.sharing is None:
        others = range(1, first.parts)
        rest = [await ask(bus, target, "status", encode(StatusRequest(part)), AgentStatus) for part in others]
        return [join_status([first, *rest])]
    parts: dict[str, list[AgentStatus]] = {}
    for part in range(STATUS_PARTS_MAX):
        request, live = encode(StatusRequest(part)), max(1, len(first.sharing.agents))
        for status in await ask_all(bus, target, "status", request, AgentStatus, live):
            if status.part == part:
                parts.setdefault(status.agent, []).append(status)
        if all(found[0].parts <= part + 1 for found in parts.values()):
            break
    return [join_status(parts[agent]) for agent in sorted(parts)] or [first]


async def ask_status(bus: NatsBus, target: Target) -> AgentStatus:
    """Return the status of the fleet.

    Raises:
        LoadlineError: No agent answers, or the answer is invalid.
    """
    return merge_agents(await ask_statuses(bus, target))
