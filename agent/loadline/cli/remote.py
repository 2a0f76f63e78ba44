"""Commands that ask a running agent: status, explain, drain, pause, resume."""

import argparse
import asyncio
import getpass
import os
import sys
from typing import TypeVar

import msgspec
from msgspec import Struct

from loadline.adapters import logs
from loadline.adapters.nats_bus import NatsBus
from loadline.cli import journal, output
from loadline.config import NatsKnobs, load
from loadline.config.rules import check_servers
from loadline.core.vocabulary.status import AgentStatus
from loadline.errors import BusUnavailable, LoadlineError
from loadline.runtime.status_parts import whole
from loadline.wire.codec import Rejected, decode_as, encode
from loadline.wire.messages import DrainOrder, ExplainReply, ExplainRequest, OperatorReply, PauseCommand, StatusRequest
from loadline.wire.subjects import Subjects

TIMEOUT_S = 2.0

T = TypeVar("T", bound=Struct)


def status(options: argparse.Namespace) -> int:
    """Print the fleet as the leader sees it."""
    first = _ask(options, "status", encode(StatusRequest()), AgentStatus)
    others = range(1, first.parts)
    rest = [_ask(options, "status", encode(StatusRequest(part)), AgentStatus) for part in others]
    answer = whole([first, *rest])
    return _print(options, answer, output.status(answer, only_moves=bool(_where(options).only)))


def explain(options: argparse.Namespace) -> int:
    """Print inputs, proposals, rails and result of a decision, and what the policies that move requests saw."""
    if options.journal is not None:
        found = journal.explain(options.journal, options.decision, options.model)
    else:
        request = ExplainRequest(decision_id=options.decision, model=options.model)
        found = _ask(options, "explain", encode(request), ExplainReply)
    texts = [*map(output.explanation, found.explanations), *map(output.policy_look, found.moves)]
    if not texts:
        what = f"decision {options.decision}" if options.decision else f"model {options.model or '(any)'}"
        print(f"loadline: nothing is known of {what}; a journal goes back further: --journal PATH", file=sys.stderr)
        return 1
    return _print(options, found, "\n\n".join(texts))


def drain(options: argparse.Namespace) -> int:
    """Ask the leader to empty a worker."""
    order = DrainOrder(options.model, options.pool, options.worker, _who())
    return _order(
        options, "drain", order, f"{options.worker} is going to be asked to drain; `loadline status` shows it leave"
    )


def pause(options: argparse.Namespace) -> int:
    """Stop deciding for a model, and moving its requests."""
    done = f"{options.model} is paused: its fleet and its requests stay as they are"
    return _order(options, "pause", PauseCommand(options.model, _who()), done)


def resume(options: argparse.Namespace) -> int:
    """Decide for a model again, and move its requests."""
    done = f"{options.model} is resumed: its fleet and its requests may change again"
    return _order(options, "resume", PauseCommand(options.model, _who()), done)


def _who() -> str:
    """Who gives the order, as far as this host knows: a container's user may have no name."""
    try:
        return getpass.getuser()[:64]
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def _order(options: argparse.Namespace, method: str, order: Struct, done: str) -> int:
    reply = _ask(options, method, encode(order), OperatorReply)
    if not reply.accepted:
        print(f"loadline: {output.printable(reply.detail)}", file=sys.stderr)
        return 1
    return _print(options, reply, done)


def _print(options: argparse.Namespace, answer: Struct, text: str) -> int:
    print(msgspec.json.format(msgspec.json.encode(answer)).decode() if options.json else output.printable(text))
    return 0


class _Where(Struct, frozen=True):
    """Who is asked: by which server, under which root, and what that agent alone does."""

    nats: NatsKnobs
    root: str
    only: str


def _where(options: argparse.Namespace) -> _Where:
    knobs, root, only = NatsKnobs(), "loadline", ""
    if options.config is not None:
        config = load(options.config)
        check_servers(config.nats.servers, "nats.servers", ("nats", "tls"))
        knobs, root, only = config.nats, config.agent.root, config.agent.only
    if options.nats:
        check_servers((options.nats,), "--nats", ("nats", "tls"))
        knobs = msgspec.structs.replace(knobs, servers=(options.nats,))
    if "only" not in options:  # an agent that only moves requests takes no such order
        return _Where(knobs, options.root or root, "")
    return _Where(knobs, options.root or root, options.only or only)


def _ask(options: argparse.Namespace, method: str, payload: bytes, kind: type[T]) -> T:
    where = _where(options)
    subject, remedy = Subjects(where.root).api(method, where.only), _remedy(method, where.only)
    return asyncio.run(_request(where.nats, subject, payload, kind, remedy))


def _remedy(method: str, only: str) -> str:
    """What to do where nobody answers: all agents answer for their status, only the leader the rest."""
    if method != "status":
        return f"Is one running and leading? `loadline status{f' --only {only}' if only else ''}` tells."
    return "Start one." if only else "Start one, or add --only migration if it is that one that runs."


async def _request(knobs: NatsKnobs, subject: str, payload: bytes, kind: type[T], remedy: str) -> T:
    logs.configure("auto", "error")  # what a connection lacks is told below, once and in a sentence
    bus = NatsBus(knobs, name="loadline cli")
    try:
        await bus.connect(lambda _connected: None)
        if not bus.connected:
            servers = ", ".join(knobs.servers)
            remedy = "Say where it is: --nats URL or --config FILE"
            raise LoadlineError(f"NATS is not reached at {servers}: {bus.last_error}. {remedy}")
        try:
            data = await bus.request(subject, payload, TIMEOUT_S)
        except BusUnavailable as error:
            raise LoadlineError(f"no agent answers on {subject}: {error}. {remedy}") from error
    finally:
        await bus.close()
    answer = decode_as(kind, data)
    if isinstance(answer, Rejected):
        refusal = decode_as(OperatorReply, data)
        detail = answer.detail if isinstance(refusal, Rejected) else refusal.detail
        raise LoadlineError(f"the agent's answer on {subject} cannot be used: {detail}")
    return answer
