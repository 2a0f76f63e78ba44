"""Migration state of one model as one Struct; deleting it removes the model from migration."""

from collections.abc import Mapping

from msgspec import Struct, field

from loadline.core.migration.consolidation import Consolidation
from loadline.core.migration.failed_workers import FailedWorker
from loadline.core.migration.knobs import DRAIN, MigrationKnobs
from loadline.core.migration.outcomes import PolicyReport
from loadline.core.migration.peers import MigrationPeers
from loadline.core.migration.tally import MigrationTally
from loadline.core.vocabulary.migrations import MigrationEndpoint


class GroupMigrationState(Struct):
    """Migration state of one group of workers."""

    consolidation: Consolidation = field(default_factory=Consolidation)
    reports: dict[str, PolicyReport] = field(default_factory=dict)
    """Last report of each policy, by policy."""
    domain_alarm_raised: bool = False
    """True if the alarm ``failover_domain_unknown`` was raised for the group."""


class ModelMigrationState(Struct):
    """Migration state of one model."""

    knobs: MigrationKnobs | None = None
    """Knobs of the model; None while migration is disabled."""
    due_ms: int = 0
    """Time of the next full round."""
    peers: MigrationPeers = field(default_factory=MigrationPeers)
    changed_peers: list[MigrationEndpoint] = field(default_factory=list)
    """Workers whose peer state has changed since the last round."""
    failed: list[FailedWorker] = field(default_factory=list)
    """Failed workers of the last round."""
    groups: dict[str, GroupMigrationState] = field(default_factory=dict)
    tally: MigrationTally = field(default_factory=MigrationTally)
    faulty: bool = False
    """True if the last round raised an exception."""

    def group(self, name: str) -> GroupMigrationState:
        """Return the state of a group, and create it if it is new."""
        found = self.groups.get(name)
        if found is None:
            found = self.groups[name] = GroupMigrationState()
        return found

    def apply_settings(self, roles: Mapping[str, str], knobs: MigrationKnobs) -> None:
        """Enable migration, and remove groups, policies and pools that are no longer configured.

        Args:
            roles: Role of each pool of the model, by name.
            knobs: Knobs of the model.
        """
        if self.knobs is None:
            self.due_ms = 0
        self.knobs = knobs
        groups = set(roles.values() if knobs.across_pools else roles)
        policies = {DRAIN, *knobs.active_policies}
        self.groups = {name: group for name, group in self.groups.items() if name in groups}
        for group in self.groups.values():
            group.reports = {name: report for name, report in group.reports.items() if name in policies}
        self.peers.retain_pools(roles)

    def clear_round(self) -> None:
        """Clear the results of the last round, which are outdated while no rounds take place."""
        if self.failed:
            self.failed = []
        if self.changed_peers:
            self.changed_peers = []
