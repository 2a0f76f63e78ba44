"""Pages that no engine should write."""

from hypothesis import given, settings
from hypothesis import strategies as st

from loadline.engine_metrics.engine_reader import EngineReader
from loadline.errors import NotAnExposition
from loadline.wire.codec import Codec
from loadline.wire.subjects import Subjects
from tests.support.engine_pages import check_reports, page, vllm

SUBJECTS = Subjects("loadline")
CODEC = Codec(SUBJECTS, 262_144)
VALUES = st.one_of(
    st.integers(-5, 10**6).map(float),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from(["NaN", "+Inf", "", "x", "1e308", "-1e308", "9" * 400]),
)


@given(st.lists(st.dictionaries(st.sampled_from(sorted(vllm())), VALUES), min_size=1, max_size=4), st.data())
@settings(max_examples=200, deadline=None)
def test_every_page_is_refused_or_yields_reports_that_agents_accept(
    pages: list[dict[str, float | str]], data: st.DataObject
) -> None:
    reader = EngineReader("vllm")
    for number, series in enumerate(pages):
        body = page({**vllm(finished=number), **series})
        body = body[: data.draw(st.integers(0, len(body)))] if data.draw(st.booleans()) else body
        try:
            reading = reader.read(body, number * 1_000)
        except NotAnExposition:
            continue
        check_reports(reading, number)
