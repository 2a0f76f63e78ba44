"""Description of the migration settings of a model for ``loadline check``."""

from collections.abc import Iterator
from typing import Final

from loadline.core.migration.knobs import FailoverDomain
from loadline.core.state.settings import ModelKnobs
from loadline.core.vocabulary.durations import duration

_FAIL_TOGETHER: Final[dict[FailoverDomain, str]] = {
    "instance": "alone",
    "node": "together with all workers on its node",
    "instance-unit": "together with all data-parallel ranks of its unit",
    "node-unit": "together with all workers on its node and all data-parallel ranks of their units",
}


def describe_migration(model: ModelKnobs) -> Iterator[str]:
    """Yield one sentence about migrations and one about failures; none if migration is disabled."""
    knobs = model.migration
    if not knobs.enabled:
        return
    parts = ["of draining workers"] if knobs.migrate_drains else []
    parts += [f"selected by {', '.join(knobs.active_policies)}"] if knobs.active_policies else []
    if not parts:
        yield "No request migrates: migration.policies is empty and migration.migrate_drains is false."
        return
    verb = "would migrate (no_operation is set)" if model.no_operation else "migrate"
    yield (
        f"Requests {verb} between workers: those {', and those '.join(parts)}; at most {knobs.migrations_max} at a "
        f"time. A full round takes place every {duration(knobs.interval_ms)}."
    )
    yield (
        f"A worker that is silent for {duration(knobs.suspect_after_ms)} fails, "
        f"{_FAIL_TOGETHER[knobs.failover_domain]}: failover_domain is {knobs.failover_domain}."
    )
