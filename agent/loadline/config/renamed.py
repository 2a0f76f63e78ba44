"""Remedies for unknown configuration keys, and for keys in the wrong section."""

from types import MappingProxyType
from typing import Final

from loadline.toml.checking import Fields, did_you_mean, misplaced

RENAMED: Final = MappingProxyType(
    {
        "guard": "guardrails",
        "rescheduling": "migration",
        "enable_rescheduling": "enabled",
        "rescheduling_policies": "policies",
        "rescheduling_interval_ms": "interval_ms",
        "rescheduling_decode_load_metric": "decode_load_metric",
        "rescheduling_decode_load_threshold": "decode_load_threshold",
        "rescheduling_prefill_load_metric": "prefill_load_metric",
        "rescheduling_neutral_load_metric": "neutral_load_metric",
        "rescheduling_neutral_load_threshold": "neutral_load_threshold",
        "rescheduling_load_balance_threshold": "load_balance_threshold",
        "rescheduling_load_balance_scope": "load_balance_scope",
        "rescheduling_req_select_rule": "req_select_rule",
        "rescheduling_req_select_order": "req_select_order",
        "rescheduling_req_select_value": "req_select_value",
        "move_ttl_ms": "ttl_ms",
        "moves_max": "migrations_max",
        "moves_per_worker_max": "migrations_per_worker_max",
        "move_across_pools": "across_pools",
        "gpu_wish_ttl_ms": "gpu_offer_ttl_ms",
    }
)
"""New names of renamed keys, by their old names."""
_ELSEWHERE: Final = MappingProxyType(
    {
        "guardrails": "Write it in a model: [models.guardrails].",
        "migration": "Write it in a model: [models.migration].",
        "no_operation": "It is a key of [[models]] and stops both decisions and migrations.",
        "colocated_rescheduling_mode": "Remove it: an agent that scales also migrates requests.",
        "standalone_rescheduling_mode": "Remove it and run the agent with --only migration.",
    }
)
"""Remedies for keys that belong to another section, or were replaced by an option."""


def remedy_for(key: str, known: Fields, section: str) -> str:
    """Return the remedy for an unknown key of a section.

    Args:
        key: The unknown key.
        known: The fields of the section.
        section: Path of the section with a final dot; empty for the top level.
    """
    renamed = RENAMED.get(key)
    if renamed in known:
        return f"It was renamed: write {section}{renamed}."
    return _ELSEWHERE.get(renamed or key) or misplaced(key, known) or did_you_mean(key, known)
