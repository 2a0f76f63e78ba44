"""One look at the workers of a model: who fails, who leaves, what each policy wants moved, and why or why not."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from loadline.core.belief.pool import Pool
from loadline.core.effects import Effect, RaiseAlarm, SendMigrate
from loadline.core.moves import Move, MoveEnd
from loadline.core.rescheduling.board import Board, Key
from loadline.core.rescheduling.columns import Mask
from loadline.core.rescheduling.domains import NOTHING, Member, domains_of, nameless
from loadline.core.rescheduling.measures import REQUESTS
from loadline.core.rescheduling.memory import Fallen
from loadline.core.rescheduling.packing import Packing
from loadline.core.rescheduling.policies import Policy
from loadline.core.rescheduling.selectors import Verdict
from loadline.core.rescheduling.verdicts import Amount, MoveCode, PairLook, PolicyLook, Refusal
from loadline.core.rescheduling.view import View
from loadline.core.settings import ModelKnobs
from loadline.core.state import State

PAIRS_KEPT: Final = 16
"""Of one look of a policy: more than people read."""

Pair = tuple[int, int]
"""Rows of a source and a destination."""


class Group(Struct):
    """The workers that requests of one kind can move between."""

    name: str
    board: Board
    policies: tuple[Policy, ...]


class Look:
    """One look at one model.

    Args:
        state: All that is known.
        knobs: What the model is told.
        elsewhere: Workers that fail or have vanished and are on none of its boards.
        now: Time in ms.
    """

    def __init__(self, state: State, knobs: ModelKnobs, elsewhere: Sequence[Member], now: int) -> None:
        self._state = state
        self._memory = state.rescheduling
        self._model = state.fleet.models[knobs.name]
        self._advises, self._knobs = knobs.no_operation, knobs.rescheduling
        self._elsewhere = elsewhere
        self._now = now
        self._domains = NOTHING
        self._own: dict[str, Mask] = {}
        self._silent: Refusal | None = None
        self._others_fail = False  # than at the last look
        self._leaving = self._on_their_way_out()
        self._effects: list[Effect] = []

    # -- who fails, and who leaves -------------------------------------------------------------------------------------

    def judge(self, groups: Sequence[Group]) -> list[Effect]:
        """Find out who fails by itself, and what else fails with it; gives alarms."""
        silences = [self._silence(group.board) for group in groups]
        silent = sum(int(one.sum()) for one in silences)
        alive = sum(int(group.board.columns.alive.sum()) for group in groups)
        if 2 * silent > alive:
            self._silent = Refusal.of(MoveCode.TOO_MANY_SILENT, silent=silent, workers=alive)
            silences = [np.zeros_like(one) for one in silences]
        self._own = {group.name: self._fails(group.board, one) for group, one in zip(groups, silences, strict=True)}
        boards = [(group.board, self._own[group.name]) for group in groups]
        before = self._memory.failing.pop(self._model.name, [])
        fallen = [
            Fallen(record.node, record.unit, record.data_parallel_size > 1)
            for board, own in boards
            for record in (board.workers[row].record for row in board.in_order(own))
        ]
        if fallen:
            self._memory.failing[self._model.name] = fallen
        self._others_fail = fallen != before
        if self._elsewhere or fallen:
            self._domains = domains_of(boards, self._elsewhere, self._knobs.failover_domain)
        return [alarm for group in groups for alarm in self._nameless(group)]

    def _silence(self, board: Board) -> Mask:
        """Who is silent, since we can hear."""
        columns = board.columns
        heard_ms = np.maximum(columns.seen_at_ms, self._state.bus_since_ms)
        found: Mask = columns.alive & (self._now - heard_ms >= self._knobs.suspect_after_ms)
        return found

    def _fails(self, board: Board, silent: Mask) -> Mask:
        columns = board.columns
        hung_ms = self._knobs.instance_staleness_seconds * 1_000
        hung = (columns.measures[REQUESTS] > 0.0) & (self._now - columns.changed_at_ms >= hung_ms)
        found: Mask = columns.alive & (silent | hung | ~columns.schedulable)
        return found

    def _nameless(self, group: Group) -> list[Effect]:
        key = _key(self._model.name, group.name)
        if key in self._memory.nameless:
            return []
        domain, board = self._knobs.failover_domain, group.board
        rows = np.flatnonzero(nameless(board, self._own[group.name], domain))
        if not len(rows):
            return []
        self._memory.nameless[key] = None
        name = board.end(int(rows[np.argmin(board.ranks[rows])])).worker
        text = (
            f"{name} fails alone: failover_domain is {domain}, and its record names no such thing; write node and unit"
        )
        return [RaiseAlarm("failover_domain_unknown", self._model.name, text)]

    def _on_their_way_out(self) -> set[Key]:
        """Workers that drain, or will if what is being committed or announced becomes true."""
        entry = self._state.ledger.entries.get(self._model.name)
        decisions = () if entry is None else (entry.pending, entry.decision)
        named = {
            (target.pool, victim.worker)
            for decision in decisions
            if decision is not None
            for target in decision.targets
            for victim in target.victims
        }
        open_ones = self._state.drains.open.values()
        return named | {(drain.pool, drain.worker) for drain in open_ones if drain.model == self._model.name}

    # -- what moves ----------------------------------------------------------------------------------------------------

    def plan(self, group: Group, rows: Sequence[int] | None) -> list[Effect]:
        """Let the policies of a group choose; ``rows`` are the workers that it is about, None: all."""
        board, self._effects = group.board, []
        if not len(board):
            return []
        about = None
        if rows is not None:
            if not (rows or self._others_fail or self._has_news()):
                return []
            about = np.zeros(len(board), dtype=np.bool_)
            about[list(rows)] = True
        failing = self._domains.struck(board, self._own[group.name])
        leaving = np.zeros(len(board), dtype=np.bool_)
        leaving[[board.rows[key] for key in self._leaving if key in board.rows]] = True
        view: View | None = None
        for one in group.policies:
            if view is None:
                board.load(self._memory.flights.of_model(self._model.name))
                view = self._view(group, failing, leaving)
            if self._let(one, group, view, about):
                view = None
        return self._effects

    def _has_news(self) -> bool:
        """Whether slots have become free in this turn."""
        flights = self._memory.flights.of_model(self._model.name)
        return any(flight.since_ms == self._now and flight.phase in {"switched", "done"} for flight in flights)

    def _view(self, group: Group, failing: Mask, leaving: Mask) -> View:
        return View(
            group.board,
            self._knobs,
            failing=failing,
            leaving=leaving,
            tpot=group.board.tpot,
            itl_ms=self._model.objectives.itl_ms,
            fresh_after_ms=self._now - self._state.fleet.knobs.stale_after_ms,
            now=self._now,
            left_ms=self._left_ms,
            soon_ready_ms=_soon_ready_ms(group.board.pools, self._now),
        )

    def _left_ms(self) -> float | None:
        """How long a request goes on, on average: half of its output, at the pace of the last minute."""
        traffic = self._model.traffic.status(self._now)
        if traffic.osl_tokens is None or traffic.itl_ms is None:
            return None
        return traffic.osl_tokens / 2.0 * traffic.itl_ms

    def _let(self, one: Policy, group: Group, view: View, about: Mask | None) -> bool:
        """Let a policy choose; says whether anything was asked for."""
        if about is not None and one.patient:
            return False
        sources = one.sources(view) & (view.movable >= 1.0)
        destinations = one.destinations(view) & (view.free_in >= 1.0)
        refusal, packing = None, self._packing(one, group, view, idle=not sources.any())
        if not sources.any():
            refusal = self._nobody_gives(one, group)
            if refusal is not None:
                self._explain(one, group, sources, destinations, [], refusal)
            return False
        if packing is not None:
            sources, refusal = packing.allowed(view, sources, destinations, self._now)
        looked: list[PairLook] = []
        pairs: list[Pair] = []
        for giving, taking in _sides(sources, destinations, None if one.urgent else about):
            # Loads are not reckoned anew within one look: who takes from one side is full for the other.
            taking[[destination for _, destination in pairs]] = False
            if refusal is None and giving.any() and taking.any():
                pairs += self._choose(one, view, giving, taking, looked)
        if about is not None and not (looked or one.urgent):
            return False  # nothing concerned those that were heard
        self._explain(one, group, sources, destinations, looked, refusal)
        if self._advises or not pairs:
            return False
        if packing is not None:
            packing.begun([view.board.keys[source][1] for source, _ in pairs], self._knobs, self._now)
        return True

    def _packing(self, one: Policy, group: Group, view: View, *, idle: bool) -> Packing | None:
        """What is remembered of a policy that waits before it acts, as of now; ``idle``: nobody could give."""
        if not one.patient:
            return None
        packing = self._memory.packing.setdefault(_key(self._model.name, group.name), Packing())
        packing.judge(view, self._now)
        if idle:
            packing.since_ms = -1
        return packing

    def _choose(self, one: Policy, view: View, sources: Mask, destinations: Mask, looked: list[PairLook]) -> list[Pair]:
        """Ask for what a policy chooses, and add what it looked at; gives the pairs between which something moves."""
        pairs: list[Pair] = []
        flights = self._memory.flights.of_model(self._model.name)
        under_way = sum(flight.slots for flight in flights)
        between = {(flight.move.source, flight.move.destination) for flight in flights if not flight.ended}
        for verdict in one.select(view, sources, destinations, one.fits):
            found = self._bounded(view, verdict, under_way, between)
            if isinstance(found, Amount) and not self._advises:
                self._ask(one, view, verdict, found)
                between.add((view.board.end(verdict[0]), view.board.end(verdict[1])))
                under_way += found.requests
            if isinstance(found, Amount):
                pairs.append(verdict[:2])
                view.take(verdict[0], verdict[1], found.requests, found.tokens)
            if len(looked) < PAIRS_KEPT:
                looked.append(self._pair(view, verdict, found))
            if isinstance(found, Refusal) and found.code is MoveCode.MOVES_MAX:
                break
        return pairs

    def _bounded(
        self, view: View, verdict: Verdict, under_way: int, between: set[tuple[MoveEnd, MoveEnd]]
    ) -> Amount | Refusal:
        """What of a pair may be asked for beside what is in flight."""
        source, destination, found = verdict
        if isinstance(found, Refusal):
            return found
        left = self._knobs.moves_max - under_way
        if left < 1:
            return Refusal.of(MoveCode.MOVES_MAX, requests=under_way)
        if between and (view.board.end(source), view.board.end(destination)) in between:
            return Refusal(MoveCode.IN_FLIGHT)
        if found.requests <= left:
            return found
        value = float(left) if found.rule == "NUM_REQ" else found.value
        return replace(found, requests=left, value=value, tokens=found.tokens * left // found.requests)

    def _ask(self, one: Policy, view: View, verdict: Verdict, amount: Amount) -> None:
        state, name, knobs = self._state, self._model.name, self._knobs
        epoch = state.leadership.epoch
        move = Move(
            command_id=self._memory.flights.next_id(name, epoch),
            model=name,
            epoch=epoch,
            source=view.board.end(verdict[0]),
            destination=view.board.end(verdict[1]),
            trigger=one.name,
            rule=amount.rule,
            order=amount.order,
            value=amount.value,
            requests_max=amount.requests,
            tokens_max=amount.tokens_max,
            hops_max=knobs.hops_max,
        )
        self._memory.flights.begin(move, amount.requests, amount.tokens, knobs.move_ttl_ms, self._now)
        self._memory.tally(name).note(one.name, "planned")
        self._effects.append(SendMigrate(move, knobs.move_ttl_ms, knobs.answer_ms))

    # -- why -----------------------------------------------------------------------------------------------------------

    def _nobody_gives(self, one: Policy, group: Group) -> Refusal | None:
        """Why a policy has no source; None: that is told as long as it never had one, and not again after it had."""
        if one.urgent and self._silent is not None:
            return self._silent
        known = _key(self._model.name, group.name, one.name) in self._memory.looks
        return None if known else Refusal(MoveCode.NO_SOURCE)

    def _pair(self, view: View, verdict: Verdict, found: Amount | Refusal) -> PairLook:
        source, destination = (view.board.keys[row][1] for row in verdict[:2])
        if isinstance(found, Refusal):
            return PairLook(source, destination, found.code, found.numbers)
        code = MoveCode.ADVISED if self._advises else MoveCode.PLANNED
        return PairLook(source, destination, code, {"requests": float(found.requests), "tokens": float(found.tokens)})

    def _explain(  # noqa: PLR0917 - one argument for each part of it
        self,
        one: Policy,
        group: Group,
        sources: Mask,
        destinations: Mask,
        looked: list[PairLook],
        refusal: Refusal | None,
    ) -> None:
        planned = next((pair for pair in looked if pair.code in {MoveCode.PLANNED, MoveCode.ADVISED}), None)
        first = planned or next(iter(looked), None)
        if refusal is None and first is None:
            refusal = Refusal(MoveCode.NO_DESTINATION)
        code, numbers = (refusal.code, refusal.numbers) if refusal is not None else (first.code, first.numbers)  # type: ignore[union-attr]  # there is one of the two
        look = PolicyLook(
            self._model.name,
            one.name,
            group.name,
            self._now,
            code,
            numbers,
            int(sources.sum()),
            int(destinations.sum()),
            tuple(looked),
        )
        self._memory.looks[_key(self._model.name, group.name, one.name)] = look


def _sides(sources: Mask, destinations: Mask, about: Mask | None) -> list[tuple[Mask, Mask]]:
    """Who may be paired because of some workers: these with all others, either way round; None: everybody."""
    if about is None:
        return [(sources, destinations.copy())]
    return [(sources & about, destinations.copy()), (sources & ~about, destinations & about)]


def _soon_ready_ms(pools: Mapping[str, Pool], now: int) -> float | None:
    """When the next worker that was asked for should be ready, from now; None: none is on its way, or it is late."""
    expected = [
        (pool.gaps[0] if pool.gaps else pool.grown_at_ms) + min(pool.start_ups_ms)
        for pool in pools.values()
        if pool.start_ups_ms and (pool.gaps or pool.starting)
    ]
    return min((float(at_ms - now) for at_ms in expected if at_ms >= now), default=None)


def _key(*names: str) -> str:
    return "\0".join(names)
