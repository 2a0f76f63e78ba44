"""Configuration: knobs, loading of files, and validation."""

from loadline.config.engines import read_engines, read_tpots
from loadline.config.file import load, parse
from loadline.config.knobs import AgentKnobs, Config, HttpKnobs, JournalKnobs, RuntimeKnobs
from loadline.config.rules import validate
from loadline.config.schedules import read_zones
from loadline.config.summary import describe
from loadline.servers import EtcdKnobs, NatsKnobs

__all__ = [
    "AgentKnobs",
    "Config",
    "EtcdKnobs",
    "HttpKnobs",
    "JournalKnobs",
    "NatsKnobs",
    "RuntimeKnobs",
    "describe",
    "load",
    "parse",
    "read_engines",
    "read_tpots",
    "read_zones",
    "validate",
]
