"""Reading and validation of the fleet file."""

import random
import statistics
from pathlib import Path

import pytest

from loadline.errors import ConfigError
from loadline.sim.fleet import FleetMigrationKnobs, SimulatedFleetKnobs, StartDelayKnobs, read_fleet
from loadline.sim.profiles import LinearProfile

LINEAR = "linear = { alpha = 10, beta = 0.1, gamma = 5, delta = 0.05 }"


def read(tmp_path: Path, text: str) -> SimulatedFleetKnobs:
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    return read_fleet(path)


def test_unset_keys_have_defaults(tmp_path: Path) -> None:
    fleet = read(tmp_path, f'[[pools]]\nname = "a"\nkv_blocks = 100\n{LINEAR}\n')
    assert fleet.pools[0].linear == LinearProfile(10.0, 0.1, 5.0, 0.05)
    assert (fleet.routing, fleet.pools[0].workers) == ("least_loaded", 1)


def test_the_table_migration_enables_migration(tmp_path: Path) -> None:
    pool = f'[[pools]]\nname = "a"\nkv_blocks = 100\n{LINEAR}\n'
    assert read(tmp_path, pool).migration is None
    assert read(tmp_path, f"{pool}[migration]\n").migration == FleetMigrationKnobs(4, 4)
    assert read(tmp_path, f"migration = {{ slots_in = 2 }}\n{pool}").migration == FleetMigrationKnobs(2, 4)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    text = '[[pools]]\nname = "a"\nkv_blocks = 100\nprefill_profile = "p/x.npz"\ndecode_profile = "/y.npz"\n'
    pool = read(tmp_path, text).pools[0]
    assert (pool.prefill_profile, pool.decode_profile) == (str(tmp_path / "p/x.npz"), "/y.npz")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("pools = []", "pools"),
        (
            '[[pools]]\nname = "a"\nkv_blocks = 0\n',
            r"pools\[0\].kv_blocks: is 0. Write a whole number 1 or more|kv_blocks",
        ),
        ('[[pools]]\nname = "a"\nkv_blocks = 1\n', r"pools\[0\]: needs either both profiles or linear parameters"),
        (f'[[pools]]\nname = "a"\nkv_blocks = 1\nprefill_profile = "x"\n{LINEAR}\n', "both profiles or linear"),
        (f'[[pools]]\nname = "a"\nkv_blocks = 1\n{LINEAR}\n' * 2, "a second time"),
        (f'routing = "luck"\n[[pools]]\nname = "a"\nkv_blocks = 1\n{LINEAR}\n', "routing: is 'luck'. Write one of"),
        (f'[[pools]]\nname = "a"\nkv_blocks = 1\n{LINEAR.replace("10", "-1")}\n', "linear"),
        (f'[[pools]]\nname = "a"\nkv_block = 1\n{LINEAR}\n', "Did you mean kv_blocks"),
        (f'drain = "migrate"\n[[pools]]\nname = "a"\nkv_blocks = 1\n{LINEAR}\n', "drain"),
        ("[[pools]", "line 1"),
    ],
)
def test_an_invalid_value_is_refused_with_its_place(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("distribution", "cv"), [("constant", 0.0), ("uniform", 0.25), ("lognormal", 0.25), ("exponential", 1.0)]
)
def test_start_delays_have_their_mean_and_spread(distribution: str, cv: float) -> None:
    knobs = StartDelayKnobs(distribution, 60.0)  # type: ignore[arg-type]
    rng = random.Random(1)
    drawn = [knobs.draw_ms(rng) for _ in range(20_000)]
    assert min(drawn) >= 0
    # The error of a mean of 20,000 is 0.7 % of the spread; 3 % is four of that.
    assert statistics.mean(drawn) == pytest.approx(60_000, rel=0.03)
    assert statistics.pstdev(drawn) / 60_000 == pytest.approx(cv, rel=0.03, abs=1e-9)
