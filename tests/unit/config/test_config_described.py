"""The description of a configuration by `loadline check`."""

import pytest

from loadline.config import describe, parse
from tests.support.config_texts import AGGREGATED, BASE, BY_THRESHOLD, DECODE, FIXED, config_warnings, model


@pytest.mark.parametrize(
    ("planner", "objectives", "said"),
    [
        ("saturation", "", "by load alone, at any latency."),
        ("auto", "", "by the defaults, TTFT 500 ms and ITL 50 ms."),
        ("saturation", "objectives.itl_ms = 50", ""),
        ("auto", "service_class = 'x'", ""),
        ("threshold", "", ""),
    ],
)
def test_models_without_objectives_are_described(planner: str, objectives: str, said: str) -> None:
    service = "\n[[service_classes]]\nname = 'x'\nobjectives.ttft_ms = 500\n"
    text = describe(parse(BASE + model(f'planner = "{planner}"\n{objectives}', AGGREGATED) + service, "x"))
    described = text[text.index("Model m:") :]
    assert ("No objectives are set" in described) == bool(said)
    assert said in described
    assert ("mean latency of half a minute" in described) == (planner == "saturation" and bool(objectives))


def test_describe_covers_agent_models_and_pools() -> None:
    text = (
        model('planner = "threshold"\ngpu_budget_max = 9\nno_operation = true', AGGREGATED + FIXED)
        + '[journal]\ndirectory = "/j"\n[http]\nport = 0'
    )
    described = describe(parse(BY_THRESHOLD + text, "x"))
    for words in (
        "nats://127.0.0.1:4222",
        "/loadline/default/",
        "Model llama: the threshold planner decides.",
        "Pool prefill (prefill): 1 to 8 workers of 1 GPU.",
        "mean prefill queue is above 0.5",
        "mean KV load is above 0.9",
        "Model m: the threshold planner recommends only (no_operation is set).",
        "always 3 workers",
        "at most 9 GPUs",
        "Either signal adds a worker; removing one needs both.",
        "HTTP: disabled.",
        "Journal: /j, at most 1024 MiB.",
        "30 s",
        "adds at most 8 to a pool, without a cooldown; it removes at most 1, no sooner than 5 s after its last change",
    ):
        assert words in described


DESCRIPTIONS = [
    (
        'planner = "auto"',
        (
            "within TTFT 500 ms, unless a profile tells it",
            "within ITL 50 ms, unless a profile tells it",
            "(1 min until one is observed)",
            "No cooldown, stabilisation or step limit applies",
        ),
    ),
    (
        'planner = "static"\nstatic.replicas.p = 3',
        ("Fixed at 3 workers.", "No fixed count: the current target is kept."),
    ),
    (
        'planner = "hpa"',
        ("Every 15 s", "tolerance 10%", ": requests in flight 0.7.", ": KV usage 0.7.", "of the last 5 min"),
    ),
    (
        'planner = "load"',
        ("up to what the load needs, at most to twice the count", "removes one worker", "at most once every 5 s"),
    ),
    (
        'planner = "saturation"',
        ("full while it computes.", "full at KV usage 0.8.", "above 90% utilisation", "below 75% at", "3 min peak"),
    ),
    (
        'planner = "saturation"\nsaturation.profile = "upstream"',
        ("Adds or removes one worker every 1 min", "5 waiting"),
    ),
    (
        'planner = "kpa"',
        ("Every 2 s", "for 0.7 requests", "for 70 requests", "averaged over 1 min", "6 s need 2 times"),
    ),
    (
        'planner = "kpa"\nkpa.rules = "aibrix"',
        ("Every 2 s", "mean of the last 6 s exceeds 2 times", "10% above to 10% below"),
    ),
]


@pytest.mark.parametrize(("body", "words"), DESCRIPTIONS)
def test_describe_covers_each_planner(body: str, words: tuple[str, ...]) -> None:
    described = describe(parse(model(body, 'name = "p"\nrole = "prefill"', DECODE), "x"))
    assert all(word in described for word in words), described


def test_describe_covers_the_budget_of_all_models() -> None:
    assert "All models together" not in describe(parse(BASE, "x"))
    described = describe(parse(f"[fleet]\ngpu_budget_max = 9\ngpu_budget_min = 3\n{BASE}", "x"))
    assert "All models together: at least 3 and at most 9 GPUs." in described


def test_agents_that_share_the_models_are_described() -> None:
    text = "[sharing]\nshards = 8\n[leadership]\nlease_ttl_s = 5\n"
    described = describe(parse(text + BASE, "x"))
    assert "It shares the models, in 8 shards, with the other agents of this namespace." in described
    assert "A failed leader is replaced within 7 s; " in described
    assert "to the reports of the models that it leads." in described
    alone = describe(parse(text.replace("8", "1") + BASE, "x"))
    assert "shares the models" not in alone
    assert "A failed leader is replaced within 5.5 s; " in alone


@pytest.mark.parametrize("key", ["gpu_budget_max", "gpu_budget_min"])
def test_a_budget_that_leaves_nothing_to_share_is_warned_of(key: str) -> None:
    def warned(shards: int, *more: str) -> list[str]:
        text = f"[sharing]\nshards = {shards}\n[fleet]\n{key} = 16\n{BASE}{''.join(more)}"
        return [warning for warning in config_warnings("", base=text) if warning.startswith("sharing.")]

    second = model("", AGGREGATED + "\nreplicas_max = 64")
    assert warned(8) == warned(1, second) == []
    (warning,) = warned(8, second)
    assert warning.startswith(f"sharing.shards: has no effect with fleet.{key}, which one agent decides for all models")
