"""Actions of operators on alarms, by kind."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_NOTHING: Final = "Nothing: the agent"

ALARM_ACTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "agent_name_taken": "Give each agent a name of its own: agent.name.",
        "child_not_started": "Check the installation, free memory and the limit of processes.",
        "claim_refused": "Scale the pool down on its platform and restart the scaler, or raise replicas_max.",
        "commit_refused": f"{_NOTHING} reads the decisions and plans again. If it repeats, check etcd.",
        "commit_unknown": f"{_NOTHING} reads the key back first. If it repeats, check etcd.",
        "decision_expired": "Check that a scaler runs. Raise decisions.ttl_ms if workers start slowly.",
        "decision_refused": "Read the scaler's reason. The agent decides again, after growing pauses.",
        "drain_died": "Check why the worker ended: its requests may be lost.",
        "drain_overdue": "Raise drain.ttl_ms if requests are long.",
        "drain_refused": "Read the worker's reason. The command is repeated.",
        "drain_unanswered": "Check that the worker may subscribe to its drain subject.",
        "failover_domain_unknown": "Have workers register node and unit.",
        "leader_deposed": f"{_NOTHING} leads on. Without an outage of etcd, find out who renews the lease.",
        "leader_without_lease": f"{_NOTHING} removes the key soon. If it returns, find out who writes it.",
        "migration_failed": "Report text and journal. Disable migration meanwhile.",
        "migration_lost": "Check the source.",
        "migration_unanswered": "Check that the worker may subscribe to its migrate subject.",
        "planner_failed": "Report text and journal. Use another planner, or scale by hand.",
        "settings_refused": "Correct the file; the previous configuration stays in force.",
        "store_went_back": "Pause the models again that were paused; the agent goes on by itself.",
        "stored_decision_refused": "Find out who wrote it. The next decision replaces it.",
        "worker_refused": "Correct its record or the configuration; find out who starts the workers of a full pool.",
        "workers_missing": "Find out why they do not start; they are requested again.",
        "workers_surplus": "Find out who starts them; the surplus is drained.",
        "workers_unmanaged": "Stop them on their platform, or configure their model and pool again.",
    }
)
"""Kind -> sentence for the status; docs/reference/metrics-and-alarms.md has more."""
