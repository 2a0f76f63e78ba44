"""Points of the sweeps: order and limits."""

import pytest

from loadline.profiler.plan import FULL, QUICK, DecodeTask, Grid, Limits, PrefillTask, plan

LIMITS = Limits(context_max=16_384, kv_tokens=40_000, block_tokens=16, batch_max=128)


@pytest.mark.parametrize("grid", [QUICK, FULL])
@pytest.mark.parametrize(
    "limits",
    [
        LIMITS,
        Limits(2_048, 524_288, 128, 256),
        Limits(131_072, 40_000, 16, 1),
        Limits(500, 384, 16, 8),
        Limits(384, 1_000, 16, 2),
    ],
)
def test_all_points_fit_into_the_engine(grid: Grid, limits: Limits) -> None:
    tasks, required = plan(grid, limits)
    assert len(set(tasks)) == len(tasks)
    for task in tasks:
        if isinstance(task, DecodeTask):
            tokens = task.context_tokens + grid.osl_tokens // 2
            assert task.requests * tokens <= limits.kv_tokens
            assert 1 <= task.requests <= limits.batch_max
            assert task.context_tokens - grid.osl_tokens // 2 >= 1
            assert tokens <= limits.context_max
        else:
            assert 1 <= task.isl_tokens < limits.context_max
    assert len({task for task in tasks[:required] if isinstance(task, PrefillTask)}) == 2


def test_the_first_points_are_a_sweep_of_the_whole_range() -> None:
    tasks, required = plan(FULL, LIMITS)
    for kind, field in ((PrefillTask, "isl_tokens"), (DecodeTask, "context_tokens"), (DecodeTask, "requests")):
        whole, first = (
            [getattr(task, field) for task in some if isinstance(task, kind)] for some in (tasks, tasks[:required])
        )
        assert (min(whole), max(whole)) == (min(first), max(first))
    assert required < len(tasks) // 4


def test_a_full_plan_has_as_many_points_as_the_reference() -> None:
    tasks, _ = plan(FULL, Limits(16_384, 4_000_000, 16, 256))
    assert len([task for task in tasks if isinstance(task, PrefillTask)]) == 16
    assert len({task.context_tokens for task in tasks if isinstance(task, DecodeTask)}) == 6
    assert len([task for task in tasks if isinstance(task, DecodeTask)]) == 36
