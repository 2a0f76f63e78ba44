"""Rows of the comparison: loads of all kinds, and the traces that the project carries."""

import math
from typing import Final

from loadline.core.vocabulary.scalars import Role
from tools.bench.peers.loads import Phase, Row, Window

_STEP: Final = (Phase(120, 10), Phase(480, 150), Phase(300, 10))
_RAMP: Final = (*(Phase(30, 10 + 7 * number) for number in range(21)), Phase(60, 10))
_SINE: Final = tuple(Phase(30, 80 + 60 * math.sin(math.tau * number / 20)) for number in range(40))
_AZURE_2023: Final = "agent/loadline/demo/data/azure2023_conv.csv.gz"
_AZURE_2024: Final = "tests/data/azure2024_conv_bin600.csv"
_DEEPSEEK: Final = "docs/examples/data/servegen_deepseek-r1.csv.gz"
_BOTH: Final[tuple[Role, ...]] = ("prefill", "decode")

ROWS: Final = {
    "step": Row("10 requests/s, 8 min of 150/s, 10/s; start-up 30 s", _STEP),
    "step-slow": Row("the same with a start-up of 120 s", _STEP, start_up_s=120),
    "ramp": Row("from 10 to 150 requests/s in 10 min; start-up 30 s", _RAMP),
    "sine": Row("20 to 140 requests/s, two waves of 10 min; start-up 30 s", _SINE),
    "idle": Row("5 min without requests, 6 min of 60/s; start-up 30 s", (Phase(300, 0), Phase(360, 60))),
    "long-outputs": Row(
        "5 requests/s, 8 min of 60/s, 5/s; 500 tokens in, 300 out; start-up 30 s",
        (Phase(120, 5, 500, 300), Phase(480, 60, 500, 300), Phase(300, 5, 500, 300)),
    ),
    "step-pd": Row("the load of step; prefill and decode apart", _STEP, roles=_BOTH),
    "sine-pd": Row("the load of sine; prefill and decode apart", _SINE, roles=_BOTH),
    "azure2023": Row("20 min of Azure's conversations of 2023, times 12; start-up 60 s",
                     Window(_AZURE_2023, 1_200, 12), start_up_s=60),
    "azure2023-pd": Row("20 min more of them; prefill and decode apart; start-up 60 s",
                        Window(_AZURE_2023, 1_200, 12, 1_200), start_up_s=60, roles=_BOTH),
    "azure2024": Row("40 min of Azure's conversations of 2024, at their peak; start-up 60 s",
                     Window(_AZURE_2024, 2_400, 1, 224_400), start_up_s=60),
    "deepseek": Row("20 min of requests to DeepSeek R1 (ServeGen), times 8; start-up 60 s",
                    Window(_DEEPSEEK, 1_200, 8), start_up_s=60),
    "slow-sine": Row("8 to 56 requests/s in waves; engines of half the speed",
                     tuple(Phase(30, 32 + 24 * math.sin(math.tau * number / 20)) for number in range(40)),
                     engine={"speedup_ratio": 0.5}),
    "small-cache": Row("5 requests/s, 8 min of 75/s, 5/s; an eighth of the KV cache",
                       (Phase(120, 5), Phase(480, 75), Phase(300, 5)), engine={"num_gpu_blocks": 2_048}),
    "few-slots": Row("from 4 to 50 requests/s in 10 min; 8 batch slots",
                     (*(Phase(30, 4 + 2.3 * number) for number in range(21)), Phase(60, 4)),
                     engine={"max_num_seqs": 8}),
    "slow-pd": Row("4 requests/s, 8 min of 60/s, 4/s; half the speed, prefill and decode apart; start-up 60 s",
                   (Phase(120, 4), Phase(480, 60), Phase(300, 4)), start_up_s=60, roles=_BOTH,
                   engine={"speedup_ratio": 0.5}),
    "bursts-pd": Row("two minutes each of 120 and 10 requests/s; prefill and decode apart; start-up 30 s",
                     (Phase(120, 120), Phase(120, 10)) * 5, roles=_BOTH),
    "long-prompts-pd": Row("1 request/s, 15 min of 6/s, 1/s; 9,000 tokens in, 300 out; prefill and decode apart; "
                           "start-up 60 s",
                           (Phase(300, 1, 9_000, 300), Phase(900, 6, 9_000, 300), Phase(300, 1, 9_000, 300)),
                           start_up_s=60, roles=_BOTH),
}  # fmt: skip
"""Rows by name. A request has 1,000 tokens in and 100 out unless a row says otherwise."""
