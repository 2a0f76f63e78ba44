"""Default settings of the demo.

At 20 times its speed, the 40 minutes of the trace take two, in which one of 20 requests arrives. Two copies of it have
7 to 16 of these per second. A prefill worker processes about 8 of its prompts per second, and a KV cache of 40,000
tokens holds about 30 of its requests, so each role needs two to six workers.
"""

from importlib.resources import files
from pathlib import Path

DATA = Path(str(files("loadline.demo"))) / "data"
_PROFILE = "dynamo_h100_llama3.3-70b-fp8_tp2"

MODEL = "llama-3.3-70b"
ACCELERATOR = "h100"
TRACE = DATA / "azure2023_conv.csv.gz"
PREFILL_PROFILE = DATA / f"{_PROFILE}_prefill.json"
DECODE_PROFILE = DATA / f"{_PROFILE}_decode.json"

TRACE_SPEED = 20
LOAD = 2
START_DELAY_S = 3.0
GPUS_PER_WORKER = 2  # the profile was measured on two GPUs
KV_BLOCKS = 2_500
BLOCK_SIZE_TOKENS = 16
MAX_BATCH_REQUESTS = 128
MAX_BATCHED_TOKENS = 8_192

TTFT_MS = 500.0
ITL_MS = 50.0

REPORT_INTERVAL_MS = 200
LEASE_TTL_S = 10
WORKERS_MIN = 2
WORKERS_MAX = 8

LINK_GBYTES_PER_S = 10.0
LINK_LATENCY_MS = 1.0
KV_BYTES_PER_TOKEN = 163_840  # 80 layers, 8 KV heads of 128, keys and values of one byte
