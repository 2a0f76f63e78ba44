"""What the core is told of a configuration."""

import os
import socket

from loadline.config import Config, read_engines
from loadline.core.settings import Settings
from loadline.wire.keys import LEADER_SCOPE_ALL


def agent_name(config: Config) -> str:
    """The configured name, or host and process id, which no two running agents share."""
    return config.agent.name or f"{socket.gethostname()}-{os.getpid()}"


def settings(config: Config) -> Settings:
    """What the core is told."""
    return Settings(
        agent=agent_name(config),
        scope=LEADER_SCOPE_ALL,
        models=config.models,
        fleet=config.fleet,
        leadership=config.leadership,
        decisions=config.decisions,
        drain=config.drain,
        profiles=read_engines(config),
    )
