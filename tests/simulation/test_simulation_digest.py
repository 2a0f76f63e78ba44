"""A whole simulation has the same digest in any process."""

import os
import subprocess
import sys

PROGRAM = """
from loadline.sim.simulation import Scenario, simulate
from loadline.traces import Arrival
from tests.support.simulated_fleets import disaggregated, trace, with_migration

settings, fleet = with_migration(disaggregated(workers=2, fleet={"routing": "kv_aware"}, prefix_cache_blocks=8))
arrivals = [Arrival(index * 0.05, 300, 1 + index % 90, prefix=(index % 7, index)) for index in range(900)]
print(simulate(Scenario("test", settings, fleet, trace(arrivals), 3), lambda share: None).digest)
"""


def digest(hash_seed: str) -> str:
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout.strip()


def test_the_digest_of_a_simulation_does_not_depend_on_the_process() -> None:
    one, other = digest("0"), digest("1")
    assert len(one) == 64
    assert one == other
