"""State of an upstream: attempts during an hour, and lines of the log."""

from structlog.testing import capture_logs

from loadline.sources.upstream import RETRY_MAX_S, Upstream


def test_an_hour_away_is_one_line_and_a_bounded_number_of_attempts() -> None:
    with capture_logs() as lines:
        upstream = Upstream("redis://h")
        upstream.succeeded()
        waited_s, attempts = 0.0, 0
        while waited_s < 3_600:
            wait_s = upstream.failed("unavailable", "x" * 5_000)
            assert 0 < wait_s <= RETRY_MAX_S
            waited_s, attempts = waited_s + wait_s, attempts + 1
        assert 240 <= attempts <= 600
        upstream.succeeded()
        upstream.succeeded()
        assert upstream.failed("unavailable", "again") < 1.0, "the next outage begins with short pauses"
    assert [line["event"] for line in lines] == [
        "upstream_reachable",
        "upstream_lost",
        "upstream_reachable",
        "upstream_lost",
    ]
    assert len(lines[1]["detail"]) <= 200
