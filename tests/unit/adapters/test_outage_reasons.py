"""Reasons of an outage: each once, and again after a success."""

from loadline.adapters.outage_reasons import OutageReasons


def test_each_reason_is_new_once_until_a_call_succeeds() -> None:
    reasons = OutageReasons()
    assert [reasons.is_new(one) for one in ("refused", "timeout", "refused", "timeout")] == [True, True, False, False]
    assert reasons.end()
    assert reasons.is_new("refused")


def test_an_end_without_an_outage_is_none() -> None:
    assert not OutageReasons().end()


def test_a_server_that_gives_another_reason_each_time_fills_no_log() -> None:
    reasons = OutageReasons()
    assert sum(reasons.is_new(str(number)) for number in range(100)) == 8
