"""Fault plans: drawn from a seed, saved to files, shrunk and run again.

Swarm testing: each plan activates only some of the faults, so that one fault cannot mask another in every run. Time
goes in cycles of a faulty and a calm phase; in the calm phase the system must recover.
"""

import random
from typing import Final

from msgspec import Struct

from loadline.errors import DataError
from loadline.sim.world.bus import BusFaults
from loadline.sim.world.store import StoreFaults

CYCLE_MS: Final = 900_000.0
CALM_MS: Final = 180_000.0
"""Calm phase of a cycle. A drain may take 25 s, a worker that never starts 30 s, and a decision 40 s."""
HOUR_MS: Final = 3_600_000.0
_SEEDS_WITHOUT_LIMIT: Final = 40
"""First seeds, which the safeguard mutations use, without a GPU limit."""
_SEEDS_OF_ONE_SHARD: Final = 100
"""First seeds, by which the tests find broken safeguards, without agents that share the models."""
SEEDS_OF_TWO_MODELS: Final = 50
"""First seeds, without ``night`` and at the fastest pace.

Their hours hold the most turns, decisions and migrations of the models that all plans have. By them the tests find
broken safeguards of these, and by the next seeds those of ``night``.
"""
_TEMPOS: Final = (1, 2, 3)
"""Factors of the intervals, which may be shorter or longer than leases, faults and latencies."""
TURN_SPACING_MS: Final = 50.0
_TURN_SPACING_MS_MAX: Final = 400.0
_ACTIVE: Final = 0.5
"""Probability that a fault is active in a plan."""


class FaultKind(Struct, frozen=True):
    """Frequency and duration of one kind of fault."""

    hourly_max: int
    duration_ms_min: float
    duration_ms_max: float


FAULT_KINDS: Final[dict[str, FaultKind]] = {
    "agent_paused": FaultKind(12, 500, 60_000),
    "agent_paused_at_commit": FaultKind(12, 3_000, 40_000),
    "agent_paused_at_effect": FaultKind(12, 1_000, 40_000),
    "agents_paused": FaultKind(4, 2_000, 30_000),
    "agent_killed": FaultKind(16, 100, 30_000),
    "agents_killed": FaultKind(6, 100, 20_000),
    "agent_stopped": FaultKind(16, 11_000, 30_000),
    "agent_stopped_at_commit": FaultKind(12, 11_000, 30_000),
    "agent_joins": FaultKind(4, 20_000, 120_000),
    "agent_off_bus": FaultKind(10, 1_000, 60_000),
    "agent_off_store": FaultKind(10, 500, 40_000),
    "agent_off_both": FaultKind(6, 500, 40_000),
    "agent_watch_delayed": FaultKind(20, 1_000, 15_000),
    "agent_clock_jumps": FaultKind(8, 1_000, 600_000),
    "bus_down": FaultKind(6, 500, 60_000),
    "bus_worse": FaultKind(8, 5_000, 60_000),
    "store_down": FaultKind(8, 500, 40_000),
    "store_worse": FaultKind(8, 5_000, 60_000),
    "store_wiped": FaultKind(6, 500, 4_000),
    "store_restored": FaultKind(6, 2_000, 60_000),
    "fits_fail": FaultKind(8, 1_000, 60_000),
    "fits_garbled": FaultKind(8, 1_000, 60_000),
    "leader_revoked": FaultKind(8, 0, 0),
    "worker_dies": FaultKind(30, 0, 0),
    "workers_die": FaultKind(4, 0, 0),
    "worker_mute": FaultKind(30, 1_000, 40_000),
    "workers_mute": FaultKind(12, 2_000, 20_000),
    "worker_off_bus": FaultKind(12, 1_000, 40_000),
    "worker_off_store": FaultKind(12, 1_000, 40_000),
    "worker_revoked": FaultKind(12, 0, 0),
    "worker_flaps": FaultKind(8, 10_000, 60_000),
    "worker_old_incarnation": FaultKind(8, 5_000, 40_000),
    "workers_hang": FaultKind(8, 20_000, 120_000),
    "workers_never_ready": FaultKind(6, 10_000, 60_000),
    "invalid_messages": FaultKind(30, 0, 0),
    "scaler_slow": FaultKind(8, 5_000, 60_000),
    "scaler_mute": FaultKind(8, 5_000, 60_000),
    "scaler_refuses": FaultKind(8, 5_000, 60_000),
    "scaler_lies": FaultKind(8, 5_000, 60_000),
    "scaler_contradicts": FaultKind(8, 5_000, 60_000),
    "scaler_repeats": FaultKind(8, 5_000, 60_000),
    "scaler_off_bus": FaultKind(6, 1_000, 40_000),
    "number_forged": FaultKind(4, 0, 0),
    "former_leader": FaultKind(6, 20_000, 240_000),
    "model_paused": FaultKind(8, 2_000, 60_000),
    "worker_drain_requested": FaultKind(12, 0, 0),
    "announcement_requested": FaultKind(12, 0, 0),
    "demand": FaultKind(60, 0, 0),
    "agent_reloads": FaultKind(12, 1_000, 60_000),
    "frontend_silent": FaultKind(12, 2_000, 90_000),
    "frontends_silent": FaultKind(4, 2_000, 60_000),
    "frontend_late": FaultKind(12, 5_000, 60_000),
    "frontend_repeats": FaultKind(12, 5_000, 60_000),
    "frontend_restarts": FaultKind(20, 0, 0),
    "frontends_off_bus": FaultKind(6, 1_000, 40_000),
    "model_idle": FaultKind(12, 40_000, 120_000),
    "wakes_slow": FaultKind(8, 20_000, 120_000),
    "wakes_fail": FaultKind(8, 5_000, 60_000),
    "engine_dies": FaultKind(16, 0, 0),
    "engine_hangs": FaultKind(12, 2_000, 60_000),
    "engine_stalls": FaultKind(12, 2_000, 120_000),
    "engine_restarts": FaultKind(16, 0, 0),
    "sidecar_dies": FaultKind(16, 500, 30_000),
    "frontend_off": FaultKind(6, 1_000, 40_000),
    "peers_down": FaultKind(4, 500, 30_000),
    "peers_worse": FaultKind(8, 5_000, 60_000),
    "worker_off_peers": FaultKind(12, 1_000, 40_000),
    "migrations_hang": FaultKind(8, 5_000, 60_000),
    "migrations_refused": FaultKind(6, 5_000, 60_000),
    "source_dies": FaultKind(16, 0, 0),
    "destination_dies": FaultKind(16, 0, 0),
    "source_cut": FaultKind(16, 500, 20_000),
    "destination_cut": FaultKind(16, 500, 20_000),
    "frontend_cut": FaultKind(16, 500, 20_000),
    "stale_migrate_commands": FaultKind(30, 0, 0),
}
"""All kinds of faults by name. Durations in ms."""
NIGHT_KINDS: Final = frozenset(
    {
        "agent_clock_jumps",
        "fits_garbled",
        "frontend_silent",
        "frontends_silent",
        "frontend_late",
        "frontend_repeats",
        "frontend_restarts",
        "frontends_off_bus",
        "model_idle",
        "wakes_slow",
        "wakes_fail",
        "engine_dies",
        "engine_hangs",
        "engine_stalls",
        "engine_restarts",
        "sidecar_dies",
        "number_forged",
        "former_leader",
    }
)
"""Kinds in plans with ``night`` only.

They are those of its frontends, engines and forecasts, of the clocks of its schedule, and numbers that block the scaler
for a while, as the mutations need the decisions of the first seeds.
"""
_RNG_STREAMS: Final = {
    "agent_watch_delayed": "agent_hears_late",
    "worker_drain_requested": "worker_sent_home",
    "announcement_requested": "scaler_asks",
    "invalid_messages": "nonsense",
    "worker_old_incarnation": "worker_of_old",
    "stale_migrate_commands": "commands_of_old",
    "workers_never_ready": "workers_never_come",
    "migrations_hang": "moves_hang",
    "migrations_refused": "moves_refused",
}
"""Random streams of kinds that have been renamed: a new name must not change the plan of a seed."""


class Fault(Struct, frozen=True):
    """One fault at one time."""

    kind: str
    at_ms: float
    duration_ms: float = 0.0
    level: float = 0.5
    """Target or severity, 0..1."""


class FaultPlan(Struct, frozen=True, forbid_unknown_fields=True):
    """All faults of one run."""

    seed: int
    """Seed of all other randomness."""
    hours: float = 1.0
    agents: int = 2
    gpus: int | None = None
    """Size of the GPU supply; None: unlimited."""
    shards: int = 1
    """Number of shards of the models, which the agents share out; 1: one agent leads all."""
    night: bool = False
    """True: the model ``night`` runs too, with its frontends, engines and sidecars."""
    tempo: int = 1
    """Factor of the intervals of reports, planners and migrations."""
    turn_spacing_ms_max: float = TURN_SPACING_MS
    """Longest minimum time between two turns; each lifetime of an agent has its own, as machines are busy or not."""
    bus: BusFaults = BusFaults()
    peers: BusFaults = BusFaults()
    """Faults of the bus between workers and frontends."""
    store: StoreFaults = StoreFaults()
    clock_skew_ms_max: float = 0.0
    clock_drift_max: float = 0.0
    faults: tuple[Fault, ...] = ()

    @property
    def ends_ms(self) -> float:
        """End of the run."""
        return self.hours * HOUR_MS


def draw(seed: int, hours: float = 1.0) -> FaultPlan:
    """Draw the plan of a seed."""
    rng = random.Random(f"{seed}:plan")  # noqa: S311 - reproducible, no secret

    def some(most: float) -> float:
        return round(rng.uniform(0.0, most), 4) if rng.random() < _ACTIVE else 0.0

    bus = BusFaults(loss=some(0.1), duplicate=some(0.1), late=some(0.1), late_ms_max=round(rng.uniform(100, 5_000)))
    store = StoreFaults(
        refused=some(0.05),
        unknown=some(0.2),
        slow=some(0.1),
        slow_ms_max=round(rng.uniform(100, 8_000)),
        compacted=some(0.02),
    )
    night = seed >= SEEDS_OF_TWO_MODELS
    kinds = [kind for kind in FAULT_KINDS if night or kind not in NIGHT_KINDS]
    faults = [fault for kind in kinds for fault in _draw_faults(kind, hours, seed)]
    return FaultPlan(
        seed=seed,
        hours=hours,
        agents=rng.choice([1, 2, 2, 2, 3]),
        gpus=_gpus(seed),
        shards=_shards(seed),
        night=night,
        tempo=random.Random(f"{seed}:tempo").choice(_TEMPOS) if night else 1,  # noqa: S311 - reproducible, no secret
        turn_spacing_ms_max=_TURN_SPACING_MS_MAX if night else TURN_SPACING_MS,
        bus=bus,
        peers=_peers(seed),
        store=store,
        clock_skew_ms_max=some(3_600_000.0),
        clock_drift_max=some(0.001),
        faults=tuple(sorted(faults, key=lambda fault: fault.at_ms)),
    )


def _peers(seed: int) -> BusFaults:
    rng = random.Random(f"{seed}:peers")  # noqa: S311 - reproducible, no secret
    loss, duplicate, late = (round(rng.uniform(0.0, 0.1), 4) if rng.random() < _ACTIVE else 0.0 for _ in range(3))
    return BusFaults(loss, duplicate, late, round(rng.uniform(100, 5_000)))


def _gpus(seed: int) -> int | None:
    rng = random.Random(f"{seed}:gpus")  # noqa: S311 - reproducible, no secret
    return None if seed < _SEEDS_WITHOUT_LIMIT else rng.choice([None, 9, 12, 14])


def _shards(seed: int) -> int:
    rng = random.Random(f"{seed}:shards")  # noqa: S311 - reproducible, no secret
    return 1 if seed < _SEEDS_OF_ONE_SHARD else rng.choice([1, 1, 1, 4])


def calm_from_ms(at_ms: float) -> float:
    """Return the start of the calm phase of the cycle that contains a time."""
    return (at_ms // CYCLE_MS + 1.0) * CYCLE_MS - CALM_MS


def _draw_faults(name: str, hours: float, seed: int) -> list[Fault]:
    """Draw the faults of one kind outside the calm phases, from a stream of its own."""
    kind = FAULT_KINDS[name]
    rng = random.Random(f"{seed}:{_RNG_STREAMS.get(name, name)}")  # noqa: S311 - reproducible, no secret
    if name != "demand" and rng.random() >= _ACTIVE:
        return []
    found = []
    for _ in range(max(1, round(rng.uniform(0.0, kind.hourly_max) * hours))):
        at_ms = round(rng.uniform(5_000.0, hours * HOUR_MS))
        duration_ms = round(rng.uniform(kind.duration_ms_min, kind.duration_ms_max))
        level = round(rng.random(), 4)
        if at_ms < calm_from_ms(at_ms):
            found.append(Fault(name, float(at_ms), float(duration_ms), level))
    return found


def check(plan: FaultPlan, name: str) -> None:
    """Validate a plan from a file.

    Raises:
        DataError: A kind of fault is unknown.
    """
    for fault in plan.faults:
        if fault.kind not in FAULT_KINDS:
            known = ", ".join(sorted(FAULT_KINDS))
            raise DataError(f"{name}: there is no fault {fault.kind!r}. The faults are: {known}.")
