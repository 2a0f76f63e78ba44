"""Reports of the frontend client on a bus in memory."""

import asyncio
import math
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from loadline.client.frontend import FrontendClient
from loadline.client.traffic_interval import LENGTH_BOUNDS
from loadline.core.vocabulary.events import TrafficReported
from loadline.wire.codec import Codec
from loadline.wire.subjects import Subjects
from tests.support.memory import MemoryBus
from tests.waiting import until

CODEC = Codec(Subjects("loadline"), 262_144)


def reports(bus: MemoryBus) -> list[TrafficReported]:
    decoded = [CODEC.decode(subject, payload) for subject, payload in bus.published]
    assert all(isinstance(report, TrafficReported) for report in decoded), decoded
    return [report for report in decoded if isinstance(report, TrafficReported)]


def test_a_report_covers_one_interval_and_the_next_begins_at_zero() -> None:
    async def scenario() -> None:
        bus = MemoryBus()
        async with FrontendClient("m", "f", bus=bus, interval_ms=3_600_000) as frontend:
            frontend.arrived(100)
            frontend.arrived(300)
            frontend.looked_up(100, 50)
            frontend.looked_up(300, 900)
            frontend.queued, frontend.in_flight = 3, 2
            frontend.finished(10, 200.0, 20.0, ttft_met=True, itl_met=False)
            frontend.finished(30, 400.0, None, ttft_met=False, itl_met=True)
            assert await frontend.report_now()
            assert await frontend.report_now()
        first, idle = (report.sample for report in reports(bus))
        assert (first.sequence, first.arrivals, first.completed, first.queued, first.in_flight) == (1, 2, 2, 3, 2)
        assert (first.isl_tokens, first.osl_tokens, first.ttft_ms, first.itl_ms) == (200, 20, 300, 20)
        assert (first.ttft_met, first.itl_met, first.both_met, first.kv_hit_rate) == (1, 1, 0, 350 / 400)
        assert (idle.sequence, idle.arrivals, idle.completed, idle.queued) == (2, 0, 0, 3)
        assert (idle.isl_tokens, idle.ttft_ms, idle.ttft_met, idle.both_met) == (None, None, None, None)
        assert idle.kv_hit_rate is None
        assert idle.isl_histogram is not None
        assert sum(idle.isl_histogram.counts) == 0

    asyncio.run(scenario())


def test_an_idle_frontend_reports_zeros() -> None:
    async def scenario() -> None:
        bus = MemoryBus()
        async with FrontendClient("m", "f", bus=bus, interval_ms=5):
            await until(lambda: len(bus.published) >= 3, "three reports")
        assert {report.sample.arrivals for report in reports(bus)} == {0}

    asyncio.run(scenario())


def test_an_invalid_report_is_not_sent_and_its_field_is_logged() -> None:
    async def scenario() -> None:
        async with FrontendClient("m", "f", bus=MemoryBus(), interval_ms=3_600_000) as frontend:
            frontend.queued = 2.5  # type: ignore[assignment]
            assert not await frontend.report_now()

    with capture_logs() as lines:
        asyncio.run(scenario())
    [logged] = [line["detail"] for line in lines if line["event"] == "message_invalid"]
    assert "$.sample.queued" in logged


def test_reports_of_an_outage_of_the_bus_are_dropped() -> None:
    async def scenario() -> None:
        bus = MemoryBus()
        async with FrontendClient("m", "f", bus=bus, interval_ms=3_600_000) as frontend:
            bus.connected = False
            frontend.arrived(1)
            assert not await frontend.report_now()
            bus.connected = True
            assert await frontend.report_now()
        [report] = reports(bus)
        assert (report.sample.sequence, report.sample.arrivals) == (2, 0)

    asyncio.run(scenario())


@pytest.mark.parametrize("tokens", [0, 1, 2, 3, 4, 5, 1_023, 1_024, 1_025, 1_048_576, 1_048_577, 10**9])
def test_a_length_is_counted_below_the_first_bound_that_holds_it(tokens: int) -> None:
    async def scenario() -> None:
        bus = MemoryBus()
        async with FrontendClient("m", "f", bus=bus, interval_ms=3_600_000) as frontend:
            frontend.arrived(tokens)
            await frontend.report_now()
        histogram = reports(bus)[0].sample.isl_histogram
        assert histogram is not None
        expected = next((index for index, bound in enumerate(LENGTH_BOUNDS) if tokens <= bound), len(LENGTH_BOUNDS))
        assert [index for index, count in enumerate(histogram.counts) if count] == [expected]

    asyncio.run(scenario())


@pytest.mark.parametrize("broken", [math.nan, math.inf, -1.0])
def test_implausible_measurements_are_omitted(broken: float) -> None:
    async def scenario() -> None:
        bus = MemoryBus()
        async with FrontendClient("m", "f", bus=bus, interval_ms=3_600_000) as frontend:
            frontend.finished(-5, broken, 10.0)
            frontend.finished(7, 50.0, broken)
            frontend.in_flight = -1
            await frontend.report_now()
        sample = reports(bus)[0].sample
        assert (sample.completed, sample.osl_tokens, sample.ttft_ms, sample.itl_ms) == (2, 7, 50, 10)
        assert sample.in_flight == 0

    asyncio.run(scenario())


def test_numbers_of_numpy_and_whole_floats_are_reported() -> None:
    async def scenario() -> None:
        bus = MemoryBus()
        async with FrontendClient("m", "f", bus=bus, interval_ms=3_600_000) as frontend:
            frontend.arrived(np.int64(300))  # type: ignore[arg-type]
            frontend.arrived(100.0)  # type: ignore[arg-type]
            frontend.queued, frontend.in_flight = np.int64(3), 2.0  # type: ignore[assignment]
            frontend.looked_up(np.int32(2**31 - 1), np.int32(0))  # type: ignore[arg-type]
            frontend.looked_up(np.int32(2**31 - 1), np.int32(2**31 - 1))  # type: ignore[arg-type]
            met, missed = np.array([1, 0], np.bool_)
            frontend.finished(np.int64(7), np.float64(50), np.float32(2), ttft_met=met, itl_met=met)  # type: ignore[arg-type]
            frontend.finished(np.uint8(9), np.float64(70), None, ttft_met=met, itl_met=missed)  # type: ignore[arg-type]
            assert await frontend.report_now()
        sample = reports(bus)[0].sample
        assert (sample.arrivals, sample.isl_tokens, sample.kv_hit_rate) == (2, 200, 0.5)
        assert (sample.queued, sample.in_flight) == (3, 2)
        assert (sample.osl_tokens, sample.ttft_ms, sample.itl_ms) == (8, 60, 2)
        assert (sample.ttft_met, sample.itl_met, sample.both_met) == (2, 1, 1)

    asyncio.run(scenario())


@pytest.mark.parametrize("ms", [1e-9, 1e20])
def test_a_report_with_extreme_latencies_is_not_refused(ms: float) -> None:
    async def scenario() -> None:
        bus = MemoryBus()
        async with FrontendClient("m", "f", bus=bus, interval_ms=3_600_000) as frontend:
            frontend.finished(7, ms, ms)
            assert await frontend.report_now()
        assert reports(bus)[0].sample.ttft_ms == (0 if ms < 1 else 1e12)

    asyncio.run(scenario())


def test_a_report_of_many_failed_requests_and_a_short_one_is_not_refused() -> None:
    async def scenario() -> None:
        bus = MemoryBus()
        async with FrontendClient("m", "f", bus=bus, interval_ms=3_600_000) as frontend:
            for tokens in [1, *[0] * 1_000]:
                frontend.finished(tokens, None, None)
            assert await frontend.report_now()
        assert reports(bus)[0].sample.osl_tokens == 0

    asyncio.run(scenario())


def test_a_request_without_a_length_is_an_error_and_not_counted() -> None:
    async def scenario() -> None:
        bus = MemoryBus()
        async with FrontendClient("m", "f", bus=bus, interval_ms=3_600_000) as frontend:
            with pytest.raises(TypeError):
                frontend.arrived(None)  # type: ignore[arg-type]
            with pytest.raises(TypeError):
                frontend.finished(None, None, None)  # type: ignore[arg-type]
            assert await frontend.report_now()
        sample = reports(bus)[0].sample
        assert (sample.arrivals, sample.completed) == (0, 0)

    asyncio.run(scenario())


@pytest.mark.parametrize("wrong", [None, math.nan, math.inf])
def test_a_number_of_held_requests_that_is_none_costs_its_reports_only(wrong: Any) -> None:
    async def scenario() -> None:
        bus = MemoryBus()
        async with FrontendClient("m", "f", bus=bus, interval_ms=5) as frontend:
            frontend.queued = wrong
            await until(lambda: any("$.sample.queued" in line.get("detail", "") for line in lines))
            frontend.queued = 1
            await until(lambda: [report.sample.queued for report in reports(bus)][-1:] == [1])

    with capture_logs() as lines:
        asyncio.run(scenario())
