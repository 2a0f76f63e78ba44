"""Simulated fleets: the fleet file and its reference page."""

from loadline.sim.fleet.knobs import (
    FleetMigrationKnobs,
    SimulatedFleetKnobs,
    SimulatedPool,
    SimulatedPoolKnobs,
    StartDelayKnobs,
    TransferKnobs,
    model_of,
    objectives_of,
    pools_of,
    read_fleet,
)

__all__ = [
    "FleetMigrationKnobs",
    "SimulatedFleetKnobs",
    "SimulatedPool",
    "SimulatedPoolKnobs",
    "StartDelayKnobs",
    "TransferKnobs",
    "model_of",
    "objectives_of",
    "pools_of",
    "read_fleet",
]
