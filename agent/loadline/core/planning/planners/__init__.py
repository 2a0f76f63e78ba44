"""Planners: one file each, one line each in PLANNERS."""

from loadline.core.planning.planner import Planner
from loadline.core.planning.planners.hpa import HpaPlanner
from loadline.core.planning.planners.hybrid import HybridPlanner
from loadline.core.planning.planners.kpa import KpaPlanner
from loadline.core.planning.planners.load import LoadPlanner
from loadline.core.planning.planners.queueing import QueueingPlanner
from loadline.core.planning.planners.saturation import SaturationPlanner
from loadline.core.planning.planners.sla import SlaPlanner
from loadline.core.planning.planners.static import StaticPlanner
from loadline.core.planning.planners.threshold import ThresholdPlanner
from loadline.core.planning.planners.throughput import ThroughputPlanner

PLANNERS: dict[str, type[Planner]] = {
    HpaPlanner.name: HpaPlanner,
    HybridPlanner.name: HybridPlanner,
    KpaPlanner.name: KpaPlanner,
    LoadPlanner.name: LoadPlanner,
    QueueingPlanner.name: QueueingPlanner,
    SaturationPlanner.name: SaturationPlanner,
    SlaPlanner.name: SlaPlanner,
    StaticPlanner.name: StaticPlanner,
    ThresholdPlanner.name: ThresholdPlanner,
    ThroughputPlanner.name: ThroughputPlanner,
}
"""Name -> planner. The knobs are the section of the same name in a model's configuration."""

BY_TRAFFIC = frozenset({HybridPlanner.name, QueueingPlanner.name, SlaPlanner.name, ThroughputPlanner.name})
"""Planners that size by traffic and engine profiles."""

FITTED = frozenset({HybridPlanner.name, QueueingPlanner.name})
"""Of those, planners that learn of engines without a profile from the iterations of their workers."""

BY_ROLE = BY_TRAFFIC | {SaturationPlanner.name}
"""Planners that share the load of a role among its pools: such a pool may be empty and grow again."""

BY_OBJECTIVE: dict[str, frozenset[str]] = {
    "ttft_ms": BY_TRAFFIC | {LoadPlanner.name},
    "itl_ms": BY_TRAFFIC | {LoadPlanner.name},
    "tokens_per_s": FITTED,
    "attainment": FITTED,
}
"""By key of the objectives, the planners that size for it."""

__all__ = ["BY_OBJECTIVE", "BY_ROLE", "BY_TRAFFIC", "FITTED", "PLANNERS", "Planner"]
