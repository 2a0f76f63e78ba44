"""W3C Trace Context of decisions. It follows from the decision id, so that anybody can join a trace."""

import hashlib


def trace_ids(decision_id: str) -> tuple[int, int]:
    """Return the ids of the trace of a decision, and of its root span."""
    digest = hashlib.sha256(f"trace\0{decision_id}".encode()).digest()
    return int.from_bytes(digest[:16]), int.from_bytes(digest[16:24])


def trace_headers(decision_id: str) -> dict[str, str]:
    """Return the header by which a scaler's spans become children of the decision's root span."""
    trace_id, span_id = trace_ids(decision_id)
    return {"traceparent": f"00-{trace_id:032x}-{span_id:016x}-01"}
