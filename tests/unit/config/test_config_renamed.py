"""Renamed keys: an old one is refused with the new one as remedy."""

import pytest

from loadline.config.file import parse
from loadline.config.renamed import RENAMED
from loadline.core.fleet.fleet import FleetKnobs
from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.state.settings import ModelKnobs
from loadline.errors import ConfigError

MODEL = '[[models]]\nname = "m"\n[[models.pools]]\nname = "p"\nrole = "aggregated"\n'


def refused(text: str, environ: dict[str, str] | None = None) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse(text, "loadline.toml", environ or {})
    return caught.value


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_old_key_is_refused_with_the_new_one(old: str, new: str) -> None:
    if new in ModelKnobs.__struct_fields__:
        error = refused(f"{MODEL}[models.{old}]\n")
        section = "models[0]."
    elif new in FleetKnobs.__struct_fields__:
        error = refused(f"{MODEL}[fleet]\n{old} = 1\n")
        section = "fleet."
    else:
        assert new in MigrationKnobs.__struct_fields__
        error = refused(f"{MODEL}[models.migration]\n{old} = 1\n")
        section = "models[0].migration."
    assert error.place == f"{section}{old}"
    assert error.remedy == f"It was renamed: write {section}{new}."


def test_an_old_key_of_a_layer_is_refused_where_it_is_written() -> None:
    error = refused(f"[defaults.guard]\nstep_up_max = 2\n{MODEL}")
    assert (error.place, error.remedy) == ("defaults.guard", "It was renamed: write defaults.guardrails.")


def test_an_old_key_of_a_layer_is_refused_once_and_where_it_is_written() -> None:
    two = MODEL + MODEL.replace('"m"', '"n"')
    for layer, place in (("defaults.migration", "defaults.migration.moves_max"), ("defaults", "defaults.moves_max")):
        error = refused(f"[{layer}]\nmoves_max = 1\n{two}")
        assert [one.place for one in error.errors] == [place]


def test_an_old_key_at_the_top_level_is_sent_into_a_model() -> None:
    error = refused(f"[rescheduling]\nenabled = true\n{MODEL}")
    assert (error.place, error.remedy) == ("rescheduling", "Write it in a model: [models.migration].")


def test_an_old_key_in_an_environment_variable_is_refused() -> None:
    error = refused(MODEL, {"LOADLINE__DEFAULTS__GUARD__STEP_UP_MAX": "2"})
    assert error.remedy == "It was renamed: write defaults.guardrails."
