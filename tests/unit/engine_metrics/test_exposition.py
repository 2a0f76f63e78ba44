import pytest

from loadline.engine_metrics.exposition import labels_of, read_exposition
from loadline.errors import NotAnExposition

NAMES = frozenset({"vllm:running", "vllm:running_total", "vllm:ttft_sum"})


def series(text: str) -> dict[str, dict[str, float]]:
    return read_exposition(text.encode(), NAMES).series


def test_only_wanted_metrics_are_read() -> None:
    text = "# TYPE vllm:running gauge\nvllm:running 2\nvllm:running_longer 3\nnot_vllm:running 4\nvllm:runnin 5\n"
    assert series(text) == {"vllm:running": {"": 2.0}}


def test_a_name_that_starts_another_is_not_mistaken_for_it() -> None:
    assert series('vllm:running_total{a="1"} 7\nvllm:running{a="1"} 2\n') == {
        "vllm:running_total": {'a="1"': 7.0},
        "vllm:running": {'a="1"': 2.0},
    }


def test_labels_may_hold_braces_quotes_and_line_ends() -> None:
    written = r'a="{x} \"y\" \\ z",b="line\nend"'
    [(labels, value)] = series(f"vllm:running{{{written}}} 3\n")["vllm:running"].items()
    assert (labels, value) == (written, 3.0)
    assert labels_of(labels) == {"a": '{x} "y" \\ z', "b": "line\nend"}


@pytest.mark.parametrize(
    "line",
    ["vllm:running 2 1767225600000", 'vllm:running 2 # {trace_id="a"} 9', "vllm:running\t2", "vllm:running  2\r"],
)
def test_timestamps_exemplars_tabs_and_carriage_returns_do_not_change_a_value(line: str) -> None:
    assert series(f"{line}\n") == {"vllm:running": {"": 2.0}}


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "1e999", "two", "0x10"])
def test_a_value_that_is_no_finite_number_is_left_out_and_counted(value: str) -> None:
    found = read_exposition(f"vllm:running {value}\nvllm:ttft_sum 1\n".encode(), NAMES)
    assert (found.series, found.unreadable) == ({"vllm:ttft_sum": {"": 1.0}}, 1)


def test_a_line_without_a_value_does_not_take_that_of_the_next() -> None:
    assert series("vllm:running\nvllm:ttft_sum 1\n") == {"vllm:ttft_sum": {"": 1.0}}


def test_of_equal_series_the_last_counts() -> None:
    assert series('vllm:running{a="1"} 2\nvllm:running{a="1"} 3\n') == {"vllm:running": {'a="1"': 3.0}}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "does not end with a line"),
        (b"vllm:running 12", "does not end with a line"),  # the beginning of 1234?
        (b"<!DOCTYPE html>\n<html>vllm:running 2</html>\n", "none of the wanted metrics"),
        (b'{"vllm:running": 2}\n', "none of the wanted metrics"),
        (b"node_load1 0.5\n", "none of the wanted metrics"),
        (b"\xff\xfe\x00\n", "none of the wanted metrics"),
    ],
)
def test_another_page_is_an_error_that_describes_it(body: bytes, reason: str) -> None:
    with pytest.raises(NotAnExposition, match=reason):
        read_exposition(body, NAMES)


def test_a_page_of_too_many_series_is_refused() -> None:
    body = "".join(f'vllm:running{{a="{number}"}} 1\n' for number in range(100_001))
    with pytest.raises(NotAnExposition, match="more than 100,000 series"):
        series(body)


@pytest.mark.parametrize("labels", ["a" * 2**20, 'a="' * 2**18, "a =" * 2**18, 'a="' + "x" * 2**20, "1a" * 2**19])
def test_labels_as_long_as_a_page_are_read_in_one_pass(labels: str) -> None:
    """A search that goes back would take hours."""
    assert set(labels_of(labels)) <= {"a"}
