"""The deployment that is examined: its servers, names and configuration."""

from msgspec import Struct

from loadline.config import Config
from loadline.servers import EtcdKnobs, NatsKnobs
from loadline.wire.keys import LEADER_SCOPE_ALL


class Deployment(Struct, frozen=True):
    """Servers and names of the agents of one namespace."""

    nats: NatsKnobs = NatsKnobs()
    etcd: EtcdKnobs = EtcdKnobs()
    root: str = "loadline"
    namespace: str = "default"
    only: str = ""
    config: Config | None = None
    """The agents' configuration; None: unknown, so that models and pools cannot be compared with it."""

    @property
    def leader_scope(self) -> str:
        """Scope of the agents' election: agents that only migrate have their own."""
        return self.only or LEADER_SCOPE_ALL

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the configured models."""
        return () if self.config is None else tuple(model.name for model in self.config.models)


def of_config(config: Config) -> Deployment:
    """Return the deployment that a configuration describes."""
    agent = config.agent
    return Deployment(config.nats, config.etcd, agent.root, agent.namespace, agent.only, config)
