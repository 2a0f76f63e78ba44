"""Prometheus metrics, rendered from the agent's status at each scrape, so that they cannot disagree with it.

Labels are models and pools of the configuration and words of closed enums, never names of workers or frontends.
"""

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from loadline.adapters.migration_metrics import migration_metrics
from loadline.adapters.planning_metrics import planning_metrics
from loadline.adapters.replica_metrics import replica_metrics
from loadline.adapters.traffic_metrics import traffic_metrics
from loadline.core.vocabulary.alarm_actions import ALARM_ACTIONS
from loadline.core.vocabulary.status import AgentStatus

_TURN_BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
_WORKER_STATES = ("desired", "ready", "starting", "pending", "draining", "fresh")
# Counters of the core -> label of ``loadline_decisions_total``.
_OUTCOMES = {
    "decisions_committed": "committed",
    "decisions_advised": "advised",
    "decisions_superseded": "superseded",
    "commits_refused": "refused",
    "commits_unknown": "unknown",
}
_ALARM = "alarm_"
# Counters of frames that the runtime refused; those that the core refused are in the status.
_REFUSED = "refused_"


class _Family(Collector):
    """Collector of one metric family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


class Metrics:
    """Metrics of the agent in Prometheus' text format.

    Args:
        counters: Returns the runtime's counters by name: ``frames_dropped`` is exported as
            ``loadline_frames_dropped_total``, and ``refused_malformed`` is added to
            ``loadline_rejected_total{reason="malformed"}``.
        version: Version of the agent.
        compatible: Prefixes of other autoscalers under which replica counts are exported as well.
    """

    def __init__(
        self,
        counters: Callable[[], Mapping[str, float]],
        version: str,
        compatible: Sequence[str] = (),
    ) -> None:
        self._counters = counters
        self._version = version
        self._compatible = compatible
        self._turns = [0] * (len(_TURN_BOUNDS_S) + 1)
        self._turns_s = 0.0
        self._process = ProcessCollector(registry=None)

    def observe_turn(self, seconds: float) -> None:
        """Record the duration of a turn."""
        self._turns[bisect_left(_TURN_BOUNDS_S, seconds)] += 1
        self._turns_s += seconds

    def render(self, status: AgentStatus) -> Iterator[bytes]:
        """Yield all metric families of a status in the text format."""
        for family in itertools.chain(self._families(status), self._process.collect()):
            yield generate_latest(_Family(family))

    def _families(self, status: AgentStatus) -> Iterator[Metric]:
        runtime = self._counters()
        refused = {name.removeprefix(_REFUSED): n for name, n in runtime.items() if name.startswith(_REFUSED)}
        rejected = {
            reason: status.rejected.get(reason, 0) + refused.get(reason, 0) for reason in status.rejected | refused
        }
        yield InfoMetricFamily("loadline_build", "Version of the agent.", {"version": self._version})
        yield InfoMetricFamily("loadline_config", "Configuration in force.", {"digest": status.config_digest})
        yield from _agent(status)
        yield from _pools(status)
        yield from _conditions(status)
        yield from _supplies(status)
        yield from replica_metrics(status, self._compatible)
        yield from migration_metrics(status.models)
        yield from traffic_metrics(status.models)
        yield from planning_metrics(status)
        yield _labelled("rejected", "Frames and samples that were refused.", "reason", rejected)
        yield from _core(status.counters)
        for name, value in sorted(runtime.items()):
            if not name.startswith(_REFUSED):
                yield CounterMetricFamily(
                    f"loadline_{name}", f"Counted by the runtime: {name.replace('_', ' ')}.", value
                )
        yield self._turn_durations()

    def _turn_durations(self) -> Metric:
        buckets, total = [], 0
        for bound, count in zip((*_TURN_BOUNDS_S, "+Inf"), self._turns, strict=True):
            total += count
            buckets.append((str(bound), total))
        text = "Duration of a turn: decoding a batch of events, handling it and starting its effects."
        return HistogramMetricFamily("loadline_turn_duration_seconds", text, buckets, sum_value=self._turns_s)


def _agent(status: AgentStatus) -> Iterator[Metric]:
    leading = float(status.leading) if status.sharing is None else status.sharing.led_ratio
    for name, text, value in (
        ("leading", "Fraction of the models' shards that this agent leads; 1: it leads all models.", leading),
        ("epoch", "Epoch of the leader; 0 while another agent leads.", status.epoch),
        ("bus_connected", "1 while NATS can be reached.", status.bus_connected),
        ("store_connected", "1 while etcd can be reached.", status.store_connected),
        ("config_ok", "1 while the configuration that was read last is in force.", not status.config_problem),
        ("config_restart_keys", "Changed keys of the configuration that need a restart.", len(status.restart_for)),
        ("uptime_seconds", "Time since the agent started.", status.uptime_ms / 1000),
    ):
        yield GaugeMetricFamily(f"loadline_{name}", text, float(value))


def _pools(status: AgentStatus) -> Iterator[Metric]:
    labels = ("model", "pool", "role")
    workers = GaugeMetricFamily("loadline_pool_workers", "Workers by state.", labels=(*labels, "state"))
    kv_usage = GaugeMetricFamily("loadline_pool_kv_usage_ratio", "Mean KV cache usage, 0 to 1.", labels=labels)
    requests = GaugeMetricFamily("loadline_pool_requests", "Requests by state.", labels=(*labels, "state"))
    cost = GaugeMetricFamily("loadline_pool_cost_per_hour", "Cost of the existing workers per hour.", labels=labels)
    power = GaugeMetricFamily("loadline_pool_power_watts", "Power of the existing workers under load.", labels=labels)
    paused = GaugeMetricFamily("loadline_model_paused", "1 while the model is paused.", labels=("model",))
    for model in status.models:
        paused.add_metric((model.model,), float(model.paused))
        for pool in model.pools:
            labels_of_pool = (model.model, pool.pool, pool.role)
            for state in _WORKER_STATES:
                workers.add_metric((*labels_of_pool, state), getattr(pool, state))
            if pool.kv_usage is not None:
                kv_usage.add_metric(labels_of_pool, pool.kv_usage)
            if not pool.silent:
                requests.add_metric((*labels_of_pool, "waiting"), pool.waiting_requests)
                requests.add_metric((*labels_of_pool, "running"), pool.running_requests)
            if pool.cost_per_hour is not None:
                cost.add_metric(labels_of_pool, pool.cost_per_hour)
            if pool.power_w is not None:
                power.add_metric(labels_of_pool, pool.power_w)
    yield from (workers, kv_usage, requests, cost, power, paused)


def _supplies(status: AgentStatus) -> Iterator[Metric]:
    labels = ("supply",)
    limit = GaugeMetricFamily("loadline_supply_gpus_limit", "GPUs by type or quota.", labels=labels)
    occupied = GaugeMetricFamily(
        "loadline_supply_gpus_occupied", "GPUs of workers that exist or are pending.", labels=labels
    )
    waiting = GaugeMetricFamily("loadline_supply_gpus_waiting", "GPUs that models wait for.", labels=labels)
    for one in status.supplies:
        limit.add_metric([one.supply], one.limit)
        occupied.add_metric([one.supply], one.occupied)
        waiting.add_metric([one.supply], sum(one.waiting.values()))
    yield from (limit, occupied, waiting)


def _conditions(status: AgentStatus) -> Iterator[Metric]:
    labels = ("model", "namespace", "condition", "reason")
    family = GaugeMetricFamily("loadline_model_condition", "1 while the condition holds, else 0.", labels=labels)
    # A standby plans no model; its conditions would look like those of a leader that fails.
    for model in status.models if status.leading else ():
        for one in model.conditions:
            family.add_metric((model.model, model.namespace, one.name, one.reason), float(one.status))
    yield family


def _core(counters: Mapping[str, int]) -> Iterator[Metric]:
    decisions = {label: counters.get(name, 0) for name, label in _OUTCOMES.items()}
    yield _labelled("decisions", "Scaling decisions.", "outcome", decisions)
    # Prometheus sees no increase in a series that begins with 1, so all kinds begin with 0.
    alarms = dict.fromkeys(ALARM_ACTIONS, 0) | {
        name.removeprefix(_ALARM): value for name, value in counters.items() if name.startswith(_ALARM)
    }
    yield _labelled("alarms", "Alarms.", "kind", alarms)
    for name, value in sorted(counters.items()):
        if name not in _OUTCOMES and not name.startswith(_ALARM):
            yield CounterMetricFamily(f"loadline_{name}", f"Counted by the core: {name.replace('_', ' ')}.", value)


def _labelled(name: str, text: str, label: str, values: Mapping[str, Any]) -> Metric:
    family = CounterMetricFamily(f"loadline_{name}", text, labels=(label,))
    for word, value in sorted(values.items()):
        family.add_metric((word,), value)
    return family
