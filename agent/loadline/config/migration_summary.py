"""What the agent will do with the requests of a model, in plain sentences."""

from collections.abc import Iterator
from typing import Final

from loadline.core.migration.knobs import FailoverDomain
from loadline.core.state.settings import ModelKnobs
from loadline.core.vocabulary.durations import duration

_FAIL_WITH_IT: Final[dict[FailoverDomain, str]] = {
    "instance": "and nothing fails with it",
    "node": "and with it all on its node",
    "instance-unit": "and with it all data-parallel ranks of its unit",
    "node-unit": "and with it all on its node, and all data-parallel ranks of the units of these",
}


def describe_migration(model: ModelKnobs) -> Iterator[str]:
    """A sentence for what moves, and one for who fails together; none where migration is off."""
    knobs = model.migration
    if not knobs.enabled:
        return
    whose = ["those of workers that drain"] if knobs.migrate_drains else []
    whose += [f"those that are chosen by {', '.join(knobs.active_policies)}"] if knobs.active_policies else []
    if not whose:
        yield "No request migrates: migration.policies is empty and migration.migrate_drains is false."
        return
    move = "would move (no_operation is set)" if model.no_operation else "move"
    yield (
        f"Requests {move} between workers: {', and '.join(whose)}; at most {knobs.migrations_max} at a time. All "
        f"workers are looked at every {duration(knobs.interval_ms)}."
    )
    yield (
        f"A worker that is silent for {duration(knobs.suspect_after_ms)} fails, "
        f"{_FAIL_WITH_IT[knobs.failover_domain]}: failover_domain is {knobs.failover_domain}."
    )
