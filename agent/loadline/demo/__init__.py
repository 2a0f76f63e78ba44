"""Demo: a fleet of simulated engines on real servers."""

from loadline.adapters.hidden_module import import_at_first_use

import_at_first_use("numpy")  # 12 MB and 60 ms of each engine, which computes with plain floats
