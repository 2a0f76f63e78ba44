"""Messages between the gateway and the workers of the demo, their subjects and their clock."""

import msgspec
import pytest

from loadline.config import NatsKnobs
from loadline.demo.clock import ReplayClock
from loadline.demo.protocol import (
    ITEMS_MAX,
    ResultBatch,
    Submission,
    SubmitBatch,
    pack,
    result_subject,
    submit_subject,
    unpack,
)
from loadline.sim.engine import EngineEvent, Request


def test_decoding_returns_the_encoded_message() -> None:
    submissions = SubmitBatch("g", [Submission(Request("g.1.1", 10, 20, 1, prefilled=True), 12.5)])
    assert unpack(SubmitBatch, pack(submissions)) == submissions
    for held in (None, [], ["g.1.1"]):
        results = ResultBatch("w", 1, [EngineEvent("finished", "g.1.1", 99.25)], held, leaving=True)
        assert unpack(ResultBatch, pack(results)) == results


@pytest.mark.parametrize("payload", [b"", b"{}", b"\xc1", b"\x81" * 100_000, msgspec.msgpack.encode({"gateway": "g"})])
def test_other_payloads_are_refused(payload: bytes) -> None:
    assert unpack(SubmitBatch, payload) is None
    assert unpack(ResultBatch, payload) is None


def test_a_full_batch_fits_into_a_frame_and_one_more_item_is_refused() -> None:
    one = Submission(Request("gateway-1a1f8a453d1.1000000.10", 100_000, 100_000, 1, prefilled=True), 1e12)
    assert unpack(SubmitBatch, pack(SubmitBatch("g", [one] * (ITEMS_MAX + 1)))) is None
    assert len(pack(SubmitBatch("g", [one] * ITEMS_MAX))) < NatsKnobs().frame_bytes_max


def test_names_become_single_subject_tokens() -> None:
    assert submit_subject("r", "a.b c") == "r.demo.submit.a%2Eb%20c"
    assert result_subject("r", "g*") == "r.demo.result.g%2A"


def test_virtual_time_is_the_same_in_all_processes_and_runs_at_the_speed() -> None:
    clock, other = ReplayClock(20.0), ReplayClock(20.0)
    first_ms = clock.now_ms()
    assert first_ms <= other.now_ms()
    assert clock.now_ms() - clock.now_ms(behind_s=1.0) == pytest.approx(20_000.0, abs=2_000.0)
