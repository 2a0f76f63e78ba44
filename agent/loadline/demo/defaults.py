"""Default settings of the demo.

At 20 times real time the 40 minutes of the trace take 120 s. Three copies of it arrive at 10 to 25 requests per virtual
second. A prefill worker processes about 8 of its prompts per second, and a KV cache of 40,000 tokens holds about 30 of
its requests, so each role needs two to eight workers.
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

SPEED = 20.0
LOAD = 3
START_DELAY_S = 1.0  # real; 20 s of virtual time
GPUS_PER_WORKER = 2  # the profile was measured on two GPUs
KV_BLOCKS = 2_500
BLOCK_SIZE_TOKENS = 16
MAX_BATCH_REQUESTS = 128
MAX_BATCHED_TOKENS = 8_192

TTFT_MS = 500.0
ITL_MS = 50.0

REPORT_INTERVAL_MS = 200  # real; 4 s of virtual time, about as long as a prefill queue lasts
LEASE_TTL_S = 10
WORKERS_MIN = 2
WORKERS_MAX = 8
SCALE_UP_WINDOW_MS = 1_000  # real; 20 s of virtual time, longer than a burst
ADJUSTMENT_INTERVAL_MS = 2_000  # real; 40 s of virtual time, shorter than the waves of the load

LINK_GBYTES_PER_S = 10.0
LINK_LATENCY_MS = 1.0
KV_BYTES_PER_TOKEN = 163_840  # 80 layers, 8 KV heads of 128, keys and values of one byte
