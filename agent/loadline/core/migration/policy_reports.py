"""Reports of the policies of one model in one round, which explain why requests migrate or stay."""

from typing import Final

import numpy as np

from loadline.core.engines.arrays import Mask
from loadline.core.migration.in_flight import InFlightMigrations
from loadline.core.migration.load_view import LoadView
from loadline.core.migration.model_state import ModelMigrationState
from loadline.core.migration.outcomes import MigrationAmount, MigrationCode, NotPlanned, PairReport, PolicyReport
from loadline.core.migration.policies import Policy

PAIRS_MAX: Final = 16
"""Maximum pairs in a report."""
_IDLE: Final = frozenset({MigrationCode.NO_SOURCE, MigrationCode.LOAD_UNKNOWN, MigrationCode.TOO_MANY_SILENT})
"""Outcomes of a policy without a source, which each full round reports again."""
_COMMANDED: Final = frozenset({MigrationCode.PLANNED, MigrationCode.ADVISED})


class PolicyReports:
    """Recorder of the reports of one model.

    Args:
        model: Name of the model.
        state: Migration state of the model, in which reports are recorded.
        in_flight: Migrations in flight of all models.
        silence_ignored: Reason why silence does not count as failure; None: it counts.
        now: Time in ms.
        advise_only: True if migrations are planned and not commanded.
    """

    def __init__(
        self,
        model: str,
        state: ModelMigrationState,
        in_flight: InFlightMigrations,
        silence_ignored: NotPlanned | None,
        now: int,
        *,
        advise_only: bool,
    ) -> None:
        self._model = model
        self._state = state
        self._in_flight = in_flight
        self._planned = MigrationCode.ADVISED if advise_only else MigrationCode.PLANNED
        self._silence_ignored = silence_ignored
        self._now = now

    def no_source(self, policy: Policy, group: str, view: LoadView, *, full_round: bool) -> NotPlanned | None:
        """Return the reason why a policy has no source; None if its last report should stay.

        The last report stays until the next full round, and longer if it is about pairs.
        """
        if policy.urgent and self._silence_ignored is not None:
            return self._silence_ignored
        last = self._last(policy, group)
        if last is not None:
            due = full_round or last.code is MigrationCode.TOO_MANY_SILENT
            if not (last.code in _IDLE and due):
                return None
        if policy.metric is not None:
            unknown = view.healthy & np.isnan(view.metric(policy.metric))
            if count := int(np.count_nonzero(unknown)):
                workers = int(np.count_nonzero(view.healthy))
                return NotPlanned.of(MigrationCode.LOAD_UNKNOWN, unknown=count, workers=workers)
        return NotPlanned(MigrationCode.NO_SOURCE)

    def pair(self, source: str, destination: str, found: MigrationAmount | NotPlanned) -> PairReport:
        """Return the report of a pair of workers."""
        if isinstance(found, NotPlanned):
            return PairReport(source, destination, found.code, found.numbers)
        numbers = {"requests": float(found.requests), "tokens": float(found.tokens)}
        return PairReport(source, destination, self._planned, numbers)

    def record(  # noqa: PLR0917 - one argument for each part of a report
        self,
        policy: Policy,
        group: str,
        view: LoadView,
        sources: Mask,
        destinations: Mask,
        pairs: list[PairReport],
        obstacle: NotPlanned | None,
    ) -> None:
        """Record the report of a policy, unless it has no pair and migrations of its last report are in flight."""
        if not pairs and self._is_migrating(policy, group):
            return
        reason: PairReport | NotPlanned
        if obstacle is None and pairs:
            reason = next((pair for pair in pairs if pair.code in _COMMANDED), pairs[0])
        else:
            reason = obstacle or _no_pair(view, sources, destinations)
        self._state.group(group).reports[policy.name] = PolicyReport(
            self._model,
            policy.name,
            group,
            self._now,
            reason.code,
            reason.numbers,
            int(np.count_nonzero(sources)),
            int(np.count_nonzero(destinations)),
            tuple(pairs),
        )

    def _last(self, policy: Policy, group: str) -> PolicyReport | None:
        known = self._state.groups.get(group)
        return None if known is None else known.reports.get(policy.name)

    def _is_migrating(self, policy: Policy, group: str) -> bool:
        last = self._last(policy, group)
        if last is None or last.code is not MigrationCode.PLANNED:
            return False
        in_flight = self._in_flight.of_model(self._model)
        return any(one.command.trigger == policy.name and not one.ended for one in in_flight)


def _no_pair(view: LoadView, sources: Mask, destinations: Mask) -> NotPlanned:
    """Return the reason why there is no pair although there are sources."""
    if np.count_nonzero(destinations) and not np.count_nonzero(view.free_out[sources] >= 1.0):
        return NotPlanned.of(MigrationCode.NO_SLOTS, workers=int(np.count_nonzero(sources)))
    return NotPlanned(MigrationCode.NO_DESTINATION)
