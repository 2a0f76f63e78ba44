"""What the agent will do with the requests of a model, in plain sentences."""

from collections.abc import Iterator

from loadline.core.rescheduling.knobs import ReschedulingKnobs


def about_moves(knobs: ReschedulingKnobs) -> Iterator[str]:
    """A sentence for what moves, and one for who fails together; none where nothing moves."""
    if not knobs.enable_rescheduling:
        return
    drains = "the requests of workers that drain, and " if knobs.migrate_drains else ""
    yield (
        f"Requests move between workers: {drains}what {', '.join(knobs.policies) or 'no policy'} want moved, at most "
        f"{knobs.moves_max} at a time, all workers looked at every {knobs.rescheduling_interval_ms} ms."
    )
    yield (
        f"A worker that is silent for {knobs.suspect_after_ms} ms is failing; what fails with it is told by "
        f"{knobs.failover_domain}."
    )
