"""`loadline check` says in sentences what a configuration will do."""

import pytest

from loadline.config import describe, parse
from tests.support.configs import AGGREGATED, BASE, BY_THRESHOLD, DECODE, FIXED, model


def test_describe_says_what_will_be_done() -> None:
    text = (
        model('planner = "threshold"\ngpu_budget_max = 9\nno_operation = true', AGGREGATED + FIXED)
        + '[journal]\ndirectory = "/j"\n[http]\nport = 0'
    )
    told = describe(parse(BY_THRESHOLD + text, "x"))
    for words in (
        "nats://127.0.0.1:4222",
        "/loadline/default/",
        "Model llama: the threshold planner decides.",
        "Pool prefill (prefill): 1 to 8 workers of 1 GPU.",
        "Mean prefill queue above 0.5",
        "Mean KV load above 0.9",
        "Model m: the threshold planner advises, and decides nothing.",
        "always 3 workers",
        "at most 9 GPUs",
        "Either signal adds",
        "no port is opened",
        "Journal: /j, 1024 MiB at most.",
        "30 s",
        "adds at most 8 to a pool, and the next may follow at once; one takes at most 1, 5 s after its last change",
    ):
        assert words in told


BASELINES = [
    (
        'planner = "static"\nstatic.replicas.p = 3',
        ("Fixed at 3, whatever the load.", "No fixed count: what stands stays."),
    ),
    (
        'planner = "hpa"',
        ("Every 15 s", "give or take 10%", ": requests in flight to 0.7.", ": KV usage to 0.7.", "count of 5 min"),
    ),
    (
        'planner = "load"',
        ("As many more as the loads need, at most its double", "one less where", "one change every 5 s"),
    ),
    (
        'planner = "saturation"',
        ("full while it computes.", "full at KV usage 0.8.", "once 90% of all", "leave 75% of", "peak of 3 min"),
    ),
    ('planner = "saturation"\nsaturation.profile = "upstream"', ("One more or one less every 1 min", "5 waiting")),
    (
        'planner = "kpa"',
        ("Every 2 s", "each 0.7 requests", "each 70 requests", "mean of 1 min", "6 s ask for 2 times"),
    ),
]


@pytest.mark.parametrize(("body", "words"), BASELINES)
def test_describe_says_what_a_baseline_will_do(body: str, words: tuple[str, ...]) -> None:
    told = describe(parse(model(body, 'name = "p"\nrole = "prefill"', DECODE), "x"))
    assert all(word in told for word in words), told


def test_describe_tells_the_budget_of_all_models() -> None:
    assert "All models together" not in describe(parse(BASE, "x"))
    told = describe(parse(f"[fleet]\ngpu_budget_max = 9\ngpu_budget_min = 3\n{BASE}", "x"))
    assert "All models together: at least 3 and at most 9 GPUs." in told
