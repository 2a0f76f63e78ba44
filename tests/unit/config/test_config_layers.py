"""Layers of a configuration: precedence, locations in errors, and the description that ``check`` prints."""

import pytest
from msgspec.structs import replace

from loadline.config import describe, parse
from loadline.config.layers import sources_of
from loadline.core.planning.guardrails.knobs import UNPACED, GuardrailKnobs
from loadline.core.state.settings import ModelKnobs
from tests.support.config_texts import BASE, DECODE, config_error, config_warnings, model

LAYERS = """
[defaults]
planner = "sla"
gpu_budget_min = 2
objectives.ttft_ms = 900
objectives.itl_ms = 90
guardrails.step_up_max = 3
static.replicas = {prefill = 4, decode = 5}
[defaults.pool]
replicas_max = 30
gpus_per_worker = 2

[[namespaces]]
name = "team-a"
[namespaces.defaults]
planner = "static"
service_class = "premium"
guardrails.cooldown_up_ms = 7
pool.replicas_max = 20

[[service_classes]]
name = "premium"
priority = 1
objectives.ttft_ms = 200
models.llama.itl_ms = 20
models.llama.attainment = 0
"""
MODEL = """
[[models]]
name = "llama"
namespace = "team-a"
gpu_budget_min = 0
no_operation = false
objectives.itl_ms = 15
static.replicas.decode = 6
guardrails.cooldown_down_ms = 0
[[models.pools]]
name = "prefill"
role = "prefill"
[[models.pools]]
name = "decode"
role = "decode"
replicas_max = 10
"""


def only(text: str) -> ModelKnobs:
    (found,) = parse(text, "x").models
    return found


def test_layers_override_key_by_key_in_order_of_precedence() -> None:
    found = only(LAYERS + MODEL)
    assert (found.planner, found.service_class, found.priority) == ("static", "premium", 1)
    assert (
        found.effective_objectives.ttft_ms,
        found.effective_objectives.itl_ms,
        found.effective_objectives.attainment,
    ) == (200, 15, 0)
    assert (
        found.effective_guardrails.step_up_max,
        found.effective_guardrails.cooldown_up_ms,
        found.effective_guardrails.stabilisation_ms,
    ) == (
        3,
        7,
        60_000,
    )
    assert [(pool.replicas_max, pool.gpus_per_worker) for pool in found.pools] == [(20, 2), (10, 2)]
    assert found.knobs_of("static").replicas == {"prefill": 4, "decode": 6}


def test_a_section_of_guardrails_leaves_the_others_of_the_planner() -> None:
    """``auto`` paces itself: a limit of its steps adds no stabilisation, cooldown and warm-up."""
    section = "[defaults.guardrails]\nstep_up_max = 4\n"
    assert only(section + BASE).effective_guardrails == replace(UNPACED, step_up_max=4)
    text = "A decision adds at most 4 to a pool, without a cooldown; it removes any number, without a cooldown.\n"
    assert text in describe(parse(section + BASE, "x"))
    threshold = only(f"defaults.planner = 'threshold'\n{section}{BASE}")
    assert threshold.effective_guardrails == GuardrailKnobs(step_up_max=4)


def test_zero_and_false_override_a_layer() -> None:
    assert only(LAYERS + MODEL).gpu_budget_min == 0
    assert only(LAYERS + MODEL).effective_guardrails.cooldown_down_ms == 0
    assert only("defaults.no_operation = true\n" + MODEL).no_operation is False


def test_layers_can_set_namespace_and_service_class() -> None:
    text = "[defaults]\nnamespace = 'n'\n[[namespaces]]\nname = 'n'\ndefaults.service_class = 's'\n"
    found = only(f"{text}[[service_classes]]\nname = 's'\npriority = 5\n{BASE}")
    assert (found.namespace, found.service_class, found.priority) == ("n", "s", 5)


def test_models_without_a_namespace_are_in_the_default_namespace() -> None:
    assert only(f"[[namespaces]]\nname = 'default'\ndefaults.planner = 'hpa'\n{BASE}").planner == "hpa"


def test_a_layer_completes_a_partly_set_section_of_a_pool() -> None:
    linear = "{alpha = 1, beta = 2, gamma = 3, delta = 4, max_kv_tokens = 5}"
    found = only(f"defaults.pool.linear = {linear}\n" + model("", DECODE + "\nlinear.beta = 9"))
    assert found.pools[0].linear is not None
    assert (found.pools[0].linear.alpha, found.pools[0].linear.beta) == (1, 9)


REFUSED = [
    ("defaults.planer = 'sla'", "defaults.planer", "Did you mean planner?"),
    ("defaults.name = 'x'", "defaults.name", "Did you mean namespace?"),
    ("defaults.guardrails.step_up_max = 0", "defaults.guardrails.step_up_max", "a whole number, 1 or more"),
    ("defaults.guardrails = 3", "defaults.guardrails", "a table"),
    ("defaults = 3", "defaults", "a table"),
    ("namespaces = 3", "namespaces", "a list"),
    ("namespaces = [3]", "namespaces[0]", "a table"),
    ("defaults.pool.role = 'decode'", "defaults.pool.role", "Known are"),
    (
        "[[namespaces]]\nname = 'n'\ndefaults.pool.replicas_mx = 1",
        "namespaces[0].defaults.pool.replicas_mx",
        "Did you mean replicas_max?",
    ),
    (
        "[[namespaces]]\nname = 'n'\ndefaults.namespace = 'm'",
        "namespaces[0].defaults.namespace",
        "set it in the models",
    ),
    (
        "[[service_classes]]\nname = 's'\nmodels.llama.tftt_ms = 1",
        "service_classes[0].models.llama.tftt_ms",
        "Did you mean ttft_ms?",
    ),
    ("[[service_classes]]\nname = 's'\n" * 2, "service_classes", "a unique name"),
    ("[[namespaces]]\nname = 's'\n" * 2, "namespaces", "a unique name"),
]


@pytest.mark.parametrize(("text", "place", "remedy"), REFUSED)
def test_an_error_in_a_layer_names_the_place_in_the_layer(text: str, place: str, remedy: str) -> None:
    error = config_error(f"{text}\n{BASE}", base="")
    assert error.place == place
    assert remedy in error.remedy


CONTRADICTIONS = [
    (
        "defaults.pool.replicas_min = 9",
        "defaults.pool.replicas_min (of models[0].pools[0].replicas_min)",
        "9 is above replicas_max 8",
    ),
    ("defaults.planner = 'kpaa'", "defaults.planner (of models[0].planner)", "not an installed planner"),
    (
        "[[namespaces]]\nname = 'default'\ndefaults.service_class = 'gold'",
        "namespaces[0].defaults.service_class (of models[0].service_class)",
        "is not defined",
    ),
    (
        "[[accelerators]]\nname = 'h100'\n[defaults]\npool.accelerator = 'h10'",
        "defaults.pool.accelerator (of models[0].pools[0].accelerator)",
        "is not defined",
    ),
]


@pytest.mark.parametrize(("text", "place", "problem"), CONTRADICTIONS)
def test_a_contradiction_names_the_places_in_the_layer_and_in_the_model(text: str, place: str, problem: str) -> None:
    error = config_error(f"{text}\n{BASE}", base="")
    assert error.place == place
    assert problem in error.problem


def test_an_error_in_objectives_of_one_model_names_the_service_class() -> None:
    origins = sources_of(parse(LAYERS + MODEL, "x")).origins
    assert origins["models[0].objectives.attainment"].place == "service_classes[0].models.llama.attainment"
    assert origins["models[0].objectives.ttft_ms"].place == "service_classes[0].objectives.ttft_ms"
    assert "models[0].objectives.itl_ms" not in origins


def test_an_unknown_class_is_refused_with_a_suggestion() -> None:
    text = "[[service_classes]]\nname = 'premium'\n" + model("service_class = 'premum'", DECODE)
    assert config_error(text, base="").remedy == "Did you mean premium?"
    assert "Add a [[service_classes]] table" in config_error(model("service_class = 'x'", DECODE), base="").remedy


ACCELERATORS = [
    ("accelerator = 'h10'", "'h10' is not defined", "Did you mean h100?"),
    ("accelerator = 'mi300'", "'mi300' is not defined", "Known are: h100."),
    ("accelerator = 'h100'\ngpus_per_worker = 3", "has units of 2 GPUs, but a worker takes 3", "a multiple of 2"),
    ("accelerator = 'h100'\ngpus_per_worker = 3", "has units of 2 GPUs", "the multiplicity to 1"),
]


@pytest.mark.parametrize(("pool", "problem", "remedy"), ACCELERATORS)
def test_a_pool_needs_a_known_accelerator_in_whole_units(pool: str, problem: str, remedy: str) -> None:
    known = "[[accelerators]]\nname = 'h100'\nmultiplicity = 2\n"
    error = config_error(known + model("", f"{DECODE}\n{pool}"), base="")
    assert error.place == "models[0].pools[0].accelerator"
    assert problem in error.problem
    assert remedy in error.remedy


def test_accelerators_are_unique_and_optional() -> None:
    assert config_error("[[accelerators]]\nname = 'h100'\n" * 2 + BASE, base="").place == "accelerators"
    assert "Add an [[accelerators]] table" in config_error(model("", f"{DECODE}\naccelerator = 'a'"), base="").remedy
    text = "[[accelerators]]\nname = 'h100'\nmultiplicity = 2\n"
    assert not any("h100" in warning for warning in config_warnings(text))


def test_unused_layers_cause_warnings() -> None:
    spaces = "[[namespaces]]\nname = 'n'\n"
    classes = "[[service_classes]]\nname = 's'\nmodels.lama.ttft_ms = 1\nmodels.llama.ttft_ms = 1\n"
    warnings = config_warnings(spaces + classes)
    assert any(warning.startswith("namespaces[0].name: no model has") for warning in warnings)
    assert any("no model has this name. Did you mean llama?" in warning for warning in warnings)
    assert any(
        "service_classes[0].models.llama: the model has another service class" in warning for warning in warnings
    )


def test_a_model_in_an_undefined_namespace_causes_a_warning() -> None:
    pool = 'name = "a"\nrole = "aggregated"'
    spaces = '[[namespaces]]\nname = "team-b"\n[[models]]\nname = "b"\nnamespace = "team-b"\n[[models.pools]]\n' + pool
    (warning,) = config_warnings(spaces, base=model('namespace = "team-B"', pool))
    assert warning.startswith("models[0].namespace: 'team-B' is not defined in [[namespaces]]")
    assert warning.endswith("Did you mean team-b?")
    assert config_warnings(spaces, base=model("", pool)) == [], "the namespace of a model is optional"
    assert config_warnings("", base=model('namespace = "team-B"', pool)) == [], "[[namespaces]] is optional"


def test_a_warning_names_the_layer_too() -> None:
    (found,) = config_warnings("[defaults]\nguardrails.stabilisation_ms = 7200000\n")
    assert found.startswith(
        "defaults.guardrails.stabilisation_ms (of models[0].guardrails.stabilisation_ms): one high recommendation"
    )


def test_a_layer_can_be_set_by_the_environment() -> None:
    assert (
        parse(BASE, "x", {"LOADLINE__DEFAULTS__GUARDRAILS__STEP_UP_MAX": "2"})
        .models[0]
        .effective_guardrails.step_up_max
        == 2
    )


def test_values_from_layers_are_described() -> None:
    description = describe(parse(LAYERS + MODEL, "x"))
    assert (
        '  From namespaces[0].defaults: planner = "static", service_class = "premium", guardrails.cooldown_up_ms = 7, '
        in description
    )
    assert "  From service_classes[0].models.llama: objectives.attainment = 0." in description
    assert "  From service_classes[0]: priority = 1, objectives.ttft_ms = 200." in description
    assert "pools[1].gpus_per_worker = 2" in description
    assert "From" not in describe(parse(BASE, "x"))
