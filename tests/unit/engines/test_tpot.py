"""Time per output token of batches, within and beyond the measured points."""

import numpy as np
import pytest

from loadline.core.engines.tpot import TpotSurface, TpotSweep, predicted_tpot, tpot_surface

LAW = TpotSweep(
    batch_requests=(1.0, 1.0, 64.0, 64.0, 256.0, 256.0),
    tokens_per_request=(8.0, 4_096.0, 8.0, 4_096.0, 8.0, 4_096.0),
    tpot_ms=tuple(10.0 + 0.1 * b + 1e-5 * b * t for b in (1.0, 64.0, 256.0) for t in (8.0, 4_096.0)),
)
"""Base of 10 ms, 0.1 ms per request and 0.01 ms per thousand tokens."""


def tpot(sweep: TpotSweep, batch: float, tokens: float) -> float:
    return float(TpotSurface(sweep).tpot_ms(np.asarray([batch]), np.asarray([tokens]))[0])


@pytest.mark.parametrize(("batch", "tokens"), [(1, 8), (64, 4_096), (256, 8), (33, 1_000), (200, 3_000)])
def test_measured_points_are_reproduced_and_interpolated(batch: float, tokens: float) -> None:
    assert tpot(LAW, batch, tokens) == pytest.approx(10.0 + 0.1 * batch + 1e-5 * batch * tokens)


def test_beyond_the_largest_point_the_slope_continues() -> None:
    assert tpot(LAW, 512, 8) == pytest.approx(10.0 + 51.2 + 1e-5 * 512 * 8)
    assert tpot(LAW, 64, 32_768) == pytest.approx(10.0 + 6.4 + 1e-5 * 64 * 32_768)
    assert np.isfinite(tpot(LAW, 1e6, 1e6))


def test_below_the_smallest_point_the_value_is_constant() -> None:
    assert tpot(LAW, 0.5, 1) == tpot(LAW, 1, 8)


def test_measured_decreases_are_ignored() -> None:
    noisy = TpotSweep((1.0, 8.0, 1.0, 8.0), (8.0, 8.0, 100.0, 100.0), (10.0, 9.0, 8.0, 12.0))
    assert tpot(noisy, 8, 8) == 10.0
    assert tpot(noisy, 1, 100) == 10.0
    assert tpot(noisy, 8, 100) == 12.0


def test_missing_points_are_interpolated() -> None:
    holes = TpotSweep((1.0, 1.0, 8.0), (10.0, 100.0, 10.0), (10.0, 20.0, 15.0))
    assert tpot(holes, 8, 10) == 15.0
    assert tpot(holes, 8, 100) == 20.0  # at least that of a smaller batch


def test_a_single_point_gives_a_constant() -> None:
    assert tpot(TpotSweep((4.0,), (100.0,), (12.0,)), 100, 1e5) == 12.0


@pytest.mark.parametrize(
    ("points", "problem"),
    [
        (((1.0,), (1.0, 2.0), (1.0,)), "some points lack"),
        (((1.0, 2.0), (1.0, 2.0), (1.0, 0.0)), r"point 2 is \(2.0, 2.0, 0.0\)"),
        (((float("nan"),), (1.0,), (1.0,)), "point 1"),
        (((float("inf"),), (1.0,), (1.0,)), "point 1"),
        (((1.0,), (-1.0,), (1.0,)), "point 1"),
    ],
)
def test_implausible_points_are_refused(points: tuple[tuple[float, ...], ...], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        TpotSweep(*points)


def test_a_prediction_adds_one_request_and_is_0_without_tokens() -> None:
    found = predicted_tpot(tpot_surface(LAW), np.asarray([249.0, 0.0]), np.asarray([1_000_000.0, 0.0]))
    assert found.tolist() == [pytest.approx(10.0 + 25.0 + 10.0), 0.0]


def test_without_a_profile_the_prediction_is_nan() -> None:
    assert np.isnan(predicted_tpot(None, np.asarray([1.0]), np.asarray([10.0]))).all()


def test_a_surface_is_computed_once() -> None:
    assert tpot_surface(LAW) is tpot_surface(LAW)
