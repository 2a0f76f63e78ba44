"""Configuration: the knobs, the file that sets them, and the rules that judge them together."""

from loadline.config.file import load, parse
from loadline.config.knobs import (
    AgentKnobs,
    Config,
    DecisionKnobs,
    DrainKnobs,
    EtcdKnobs,
    FleetKnobs,
    HttpKnobs,
    JournalKnobs,
    LeadershipKnobs,
    ModelKnobs,
    NatsKnobs,
    PoolKnobs,
    RuntimeKnobs,
)
from loadline.config.rules import validate
from loadline.config.summary import describe

__all__ = [
    "AgentKnobs",
    "Config",
    "DecisionKnobs",
    "DrainKnobs",
    "EtcdKnobs",
    "FleetKnobs",
    "HttpKnobs",
    "JournalKnobs",
    "LeadershipKnobs",
    "ModelKnobs",
    "NatsKnobs",
    "PoolKnobs",
    "RuntimeKnobs",
    "describe",
    "load",
    "parse",
    "validate",
]
