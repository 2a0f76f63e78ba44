"""Arbitration between two planners: saturation sees the workers, queueing sees the objectives.

The queueing model leads, for it knows what is coming and what it may take. Saturation has the veto: what is loaded
does not shrink, whatever a model says. The rows are those of llm-d's Workload Variant Autoscaler, first match:

===  ==========  ========  ==================  ===================
row  saturation  queueing  and                 target
===  ==========  ========  ==================  ===================
1    up          down                          what stands, a veto
2    any         down      a shrink is unsafe  what stands, a veto
3    up          stays                         that of saturation
4    any         up, down                      that of queueing
5    any         stays                         what stands
===  ==========  ========  ==================  ===================

Who has no opinion leaves it to the other, and without any the count stays. The original reads a count that is missing
as 0, and so as a wish to shrink; here that is no count at all. Where queueing stays, it says that all are needed for
the objectives, so a shrink that only saturation wants is not made; where it says nothing, it is.
"""

from msgspec import Struct

from loadline.core.vocabulary.reasons import ReasonCode


class Arbitration(Struct, frozen=True):
    """Result of an arbitration."""

    target: int
    code: ReasonCode
    """The row that decided."""

    @property
    def vetoed(self) -> bool:
        """True if a shrink was vetoed."""
        return self.code in {ReasonCode.SATURATION_VETO, ReasonCode.SHRINK_UNSAFE}


def arbitrate(standing: int, saturation: int | None, queueing: int | None, *, shrink_safe: bool) -> Arbitration:
    """Choose the count of one pool.

    Args:
        standing: The count that stands.
        saturation: What saturation wants; None: too little is known of the workers.
        queueing: What the queueing model wants; None: it has no opinion.
        shrink_safe: Whether the others can carry the load of one worker less.
    """
    if queueing is None:
        nobody = Arbitration(standing, ReasonCode.NO_OPINION)
        return nobody if saturation is None else Arbitration(saturation, ReasonCode.SATURATION_ALONE)
    if saturation is None:
        return Arbitration(queueing, ReasonCode.QUEUEING_ALONE)
    if queueing < standing < saturation:
        return Arbitration(standing, ReasonCode.SATURATION_VETO)
    if queueing < standing and not shrink_safe:
        return Arbitration(standing, ReasonCode.SHRINK_UNSAFE)
    if queueing == standing < saturation:
        return Arbitration(saturation, ReasonCode.SATURATION_LEADS)
    return Arbitration(queueing, ReasonCode.QUEUEING_STAYS if queueing == standing else ReasonCode.QUEUEING_LEADS)
