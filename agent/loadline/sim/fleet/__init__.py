"""What a simulated fleet is made of: the fleet file, and its reference."""

from loadline.sim.fleet.knobs import (
    FleetKnobs,
    FleetMigrationKnobs,
    PoolFleet,
    PoolFleetKnobs,
    StartDelayKnobs,
    TransferKnobs,
    model_of,
    objectives_of,
    pools_of,
    read_fleet,
)

__all__ = [
    "FleetKnobs",
    "FleetMigrationKnobs",
    "PoolFleet",
    "PoolFleetKnobs",
    "StartDelayKnobs",
    "TransferKnobs",
    "model_of",
    "objectives_of",
    "pools_of",
    "read_fleet",
]
