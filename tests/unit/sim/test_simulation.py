"""Whole simulations, small enough for manual calculations."""

import msgspec
import pytest

from loadline.core.planning.guardrails.knobs import GuardrailKnobs
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.errors import ConfigError
from loadline.sim.fleet import SimulatedFleetKnobs, StartDelayKnobs
from loadline.sim.result import SimulationResult
from loadline.sim.simulation import Scenario, Simulation, simulate
from loadline.traces import Arrival, Trace
from tests.support.simulated_fleets import aggregated, disaggregated, steady, trace, with_migration


def run_simulation(
    setup: tuple[Settings, SimulatedFleetKnobs], arrivals: Trace, seed: int = 0, *, clairvoyant: bool = False
) -> SimulationResult:
    return simulate(Scenario("test", *setup, arrivals, seed, clairvoyant), lambda _share: None)


def test_a_single_request_has_the_latencies_of_the_profile() -> None:
    outcome = run_simulation(aggregated(), trace([Arrival(1.0, 200, 101)]))
    assert (outcome.requests, outcome.finished, outcome.drops) == (1, 1, 0)
    # 5 ms plus 200 tokens of 50 us, then 100 iterations of 10.1 ms.
    assert outcome.ttft_ms.p50 == pytest.approx(15.0)
    assert outcome.itl_ms.p50 == pytest.approx(10.1)


def test_a_transfer_from_prefill_to_decode_adds_its_duration_only() -> None:
    outcome = run_simulation(disaggregated(), trace([Arrival(1.0, 200, 101)]))
    assert outcome.ttft_ms.p50 == pytest.approx(15.0)
    # 200 tokens of 131,072 bytes at 25 GB/s are 1.05 ms, and 1 ms of latency, spread over 100 tokens.
    transfer_ms = 1.0 + 200 * 131_072 / 25e6
    assert outcome.itl_ms.p50 == pytest.approx(10.1 + transfer_ms / 100)


def test_every_request_ends_exactly_once_and_gpus_are_paid_for() -> None:
    outcome = run_simulation(disaggregated(workers=2), steady(600, 0.2))
    assert (outcome.requests, outcome.finished, outcome.unfinished, outcome.drops) == (600, 600, 0, 0)
    by_pool = outcome.gpu_hours_by_pool
    assert outcome.gpu_hours == pytest.approx(sum(by_pool.values()))
    # Between the minimum of one and the maximum of four workers of a pool.
    hours = outcome.duration_s / 3_600
    assert all(hours <= used <= 4 * hours + 1e-9 for used in by_pool.values())


def test_the_fleet_grows_under_load_and_shrinks_without() -> None:
    busy = [Arrival(index * 0.02, 400, 200) for index in range(6_000)]
    quiet = [Arrival(120.0 + index * 5.0, 100, 10) for index in range(60)]
    outcome = run_simulation(aggregated(), trace(busy + quiet))
    (line,) = outcome.series.pools
    assert max(line.desired) == 4
    assert line.desired[-1] < 4
    assert outcome.drains > 0
    assert outcome.finished == 6_060
    assert outcome.scaling_actions == len(outcome.actions) >= 4
    assert all(action.reasons for action in outcome.actions)
    assert outcome.gpu_hours < 4 * outcome.duration_s / 3_600


def test_a_started_worker_serves_after_its_start_delay() -> None:
    settings, fleet = aggregated(start_delay=StartDelayKnobs("constant", 30.0))
    outcome = run_simulation((settings, fleet), trace([Arrival(index * 0.02, 400, 200) for index in range(6_000)]))
    (line,) = outcome.series.pools
    decided_s = next(at for at, wanted in zip(outcome.series.at_s, line.desired, strict=True) if wanted == 2)
    served = next(at for at, ready in zip(outcome.series.at_s, line.ready, strict=True) if ready == 2)
    assert served - decided_s == pytest.approx(30.0, abs=outcome.series.step_s)


def test_a_clairvoyant_forecast_starts_workers_in_advance() -> None:
    arrivals = trace([Arrival(index * 0.06, 400, 200) for index in range(2_000)])
    blind, seeing = run_simulation(aggregated(), arrivals), run_simulation(aggregated(), arrivals, clairvoyant=True)
    assert seeing.attainment.both > blind.attainment.both
    first = min(action.at_s for action in seeing.actions)
    (line,) = seeing.series.pools
    ready = dict(zip(seeing.series.at_s, line.ready, strict=True))
    assert min(at for at, count in ready.items() if count > 1) - first <= seeing.series.step_s
    workers_s = sum(count * seeing.series.step_s for count in line.ready)
    assert seeing.gpu_hours * 3_600 > workers_s  # includes the 20 s before each worker is ready


def test_draining_workers_finish_or_migrate_their_requests() -> None:
    busy = [Arrival(index * 0.05, 100, 900) for index in range(400)]
    quiet = [Arrival(20.0 + index * 0.8, 100, 900) for index in range(400)]
    outcomes = {}
    for drain, same in (("finish", lambda setup: setup), ("migrate", with_migration)):
        settings, fleet = same(aggregated(workers=4))
        guard = GuardrailKnobs(stabilisation_ms=0, warm_up_ms=0)
        settings = msgspec.structs.replace(
            settings, models=(msgspec.structs.replace(settings.models[0], guardrails=guard),)
        )
        outcomes[drain] = run_simulation((settings, fleet), trace(busy + quiet))
    for outcome in outcomes.values():
        assert outcome.drains > 0
        assert (outcome.finished, outcome.retried, outcome.drops) == (800, 0, 0)
    assert outcomes["finish"].migrated == 0
    assert outcomes["migrate"].migrated > 0


def test_requests_that_do_not_fit_are_refused_and_counted() -> None:
    outcome = run_simulation(aggregated(), trace([Arrival(0.0, 20_000, 10), Arrival(1.0, 100, 10)]))
    assert (outcome.refused, outcome.finished, outcome.unfinished) == (1, 1, 0)
    assert outcome.attainment.both == 0.5


def test_requests_that_take_too_long_are_unfinished() -> None:
    outcome = run_simulation(
        aggregated(workers=0, replicas_max=1, start_delay=StartDelayKnobs("constant", 10_000.0)), steady(5, 1.0)
    )
    assert (outcome.finished, outcome.unfinished, outcome.attainment.ttft) == (0, 5, 0.0)
    assert outcome.ttft_ms.p50 is None


def test_kv_aware_routing_uses_prefix_caches() -> None:
    arrivals = trace([Arrival(index * 0.5, 1_024, 5, prefix=(index % 3, index % 3 + 10)) for index in range(120)])
    saved = {}
    for routing in ("round_robin", "kv_aware"):
        settings, fleet = aggregated(workers=4, fleet={"routing": routing}, prefix_cache_blocks=2)
        outcome = run_simulation((settings, fleet), arrivals)
        assert outcome.ttft_ms.p50 is not None
        saved[routing] = outcome.ttft_ms.p50
    assert saved["kv_aware"] < 10.0 < saved["round_robin"]


def test_equal_seeds_give_equal_outcomes_and_others_differ() -> None:
    settings, fleet = disaggregated(start_delay=StartDelayKnobs("lognormal", 20.0, 0.5))
    arrivals = trace([Arrival(index * 0.02, 400, 100) for index in range(3_000)])
    one, again, other = (run_simulation((settings, fleet), arrivals, seed) for seed in (1, 1, 2))
    assert one == again
    assert one.digest != other.digest


def test_progress_is_reported_during_a_run() -> None:
    settings, fleet = aggregated()
    simulation = Simulation(Scenario("test", settings, fleet, steady(100, 0.5)))
    simulation.run(10_000.0)
    assert simulation.result().requests == 21
    assert simulation.agent.controller.leading


@pytest.mark.parametrize(
    ("pools", "model", "place"),
    [
        (("other",), "", "pool other|pool both"),
        (("both", "extra"), "", "pool extra"),
        (("both",), "x", "model of the fleet"),
    ],
)
def test_a_fleet_that_does_not_match_the_configuration_is_named(pools: tuple[str, ...], model: str, place: str) -> None:
    settings, fleet = aggregated()
    described = tuple(msgspec.structs.replace(fleet.pools[0], name=name) for name in pools)
    changed = msgspec.structs.replace(fleet, pools=described, model=model)
    with pytest.raises(ConfigError, match=place):
        run_simulation((settings, changed), steady(1, 1.0))


def test_one_of_several_models_is_simulated() -> None:
    settings, fleet = aggregated()
    idle = ModelKnobs("idle", settings.models[0].pools)
    both = msgspec.structs.replace(settings, models=(idle, *settings.models))
    assert run_simulation((both, msgspec.structs.replace(fleet, model="m")), steady(5, 1.0)).finished == 5
    with pytest.raises(ConfigError, match="Name one of them"):
        run_simulation((both, fleet), steady(5, 1.0))


def test_simultaneous_requests_are_reported() -> None:
    settings, fleet = aggregated(workers=2)
    outcome = run_simulation((settings, fleet), Trace("burst", [Arrival(0.0, 100, 50)] * 40, 0.0))
    assert (outcome.finished, outcome.workers_max, outcome.series.at_s) == (40, {"both": 2}, [0.0])


def test_a_fleet_that_can_finish_no_request_is_refused() -> None:
    settings, fleet = disaggregated()
    model = settings.models[0]
    for index, lacks in ((0, "decode"), (1, "prefill")):
        half = msgspec.structs.replace(settings, models=(msgspec.structs.replace(model, pools=(model.pools[index],)),))
        with pytest.raises(ConfigError, match=f"Add a {lacks} pool"):
            run_simulation((half, msgspec.structs.replace(fleet, pools=(fleet.pools[index],))), steady(1, 1.0))


def test_an_output_of_one_token_meets_the_itl_objective_and_is_in_no_percentile() -> None:
    outcome = run_simulation(aggregated(), trace([Arrival(1.0, 200, 1), Arrival(2.0, 200, 1), Arrival(3.0, 200, 101)]))
    assert (outcome.finished, outcome.attainment.itl) == (3, 1.0)
    assert outcome.itl_ms.p50 == pytest.approx(10.1)
    single = run_simulation(aggregated(fleet={"itl_ms": 1.0}), trace([Arrival(1.0, 200, 1)]))
    assert (single.itl_ms.p50, single.attainment.itl, single.series.itl_p50_ms) == (None, 1.0, [None])


def test_decisions_and_drains_after_the_trace_do_not_count() -> None:
    settings, fleet = aggregated(workers=4)
    simulation = Simulation(Scenario("test", settings, fleet, Trace("test", [Arrival(0.0, 100, 6_000)], 5.0)))
    simulation.run(simulation.duration_ms)
    at_the_end = simulation.result()
    simulation.run_out()
    later = simulation.result()
    assert sum(life.worker.draining for life in simulation._lifetimes) > at_the_end.drains == later.drains
    counted = simulation.agent.controller.state.counters["decisions_committed"]
    assert counted > at_the_end.decisions == later.decisions
