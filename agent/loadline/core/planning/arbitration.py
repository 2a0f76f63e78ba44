"""Arbitration between two recommendations: saturation measures the workers, queueing models the objectives.

The queueing model leads: it knows the demand that is expected and the objectives. Saturation may veto: loaded workers
are not removed, regardless of what the model recommends. The rules are those of llm-d's Workload Variant Autoscaler;
the first that matches applies:

====  ==========  ===========  ==================  ======================
rule  saturation  queueing     and                 target
====  ==========  ===========  ==================  ======================
1     up          down                             current count (a veto)
2     any         down         a shrink is unsafe  current count (a veto)
3     up          no change                        count of saturation
4     any         up or down                       count of queueing
5     any         no change                        current count
====  ==========  ===========  ==================  ======================

If one of the two has no recommendation, the other decides; if both have none, the count is kept. The original reads
a missing count as 0, and so as a shrink. If queueing recommends no change, all workers are needed for the objectives,
and saturation alone cannot shrink the pool.
"""

from msgspec import Struct

from loadline.core.vocabulary.reasons import ReasonCode


class Arbitration(Struct, frozen=True):
    """Result of an arbitration."""

    target: int
    code: ReasonCode
    """Rule that decided."""


def arbitrate(current: int, saturation: int | None, queueing: int | None, *, shrink_safe: bool) -> Arbitration:
    """Choose the count of one pool.

    Args:
        current: Current count of the pool.
        saturation: Count that saturation recommends; None if too little is known of the workers.
        queueing: Count that the queueing model recommends; None without a recommendation.
        shrink_safe: True if the pool with one worker fewer can carry its load.
    """
    if queueing is None:
        neither = Arbitration(current, ReasonCode.NO_RECOMMENDATION)
        return neither if saturation is None else Arbitration(saturation, ReasonCode.SATURATION_ALONE)
    if saturation is None:
        return Arbitration(queueing, ReasonCode.QUEUEING_ALONE)
    if queueing < current < saturation:
        return Arbitration(current, ReasonCode.SATURATION_VETO)
    if queueing < current and not shrink_safe:
        return Arbitration(current, ReasonCode.SHRINK_UNSAFE)
    if queueing == current < saturation:
        return Arbitration(saturation, ReasonCode.SATURATION_LEADS)
    return Arbitration(queueing, ReasonCode.QUEUEING_KEEPS if queueing == current else ReasonCode.QUEUEING_LEADS)
