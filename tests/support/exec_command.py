"""Command of an exec scaler whose platform is a file: the workers of each pool, oldest first.

python exec_command.py DIRECTORY
"""

import json
import sys
from pathlib import Path

order = json.load(sys.stdin)
verb = order["verb"]
if verb != "validate":
    state = Path(sys.argv[1], f"{order['pool']}.json")
    workers, preferred = json.loads(state.read_text("utf-8")) if state.exists() else ([], [])
    if verb == "observe":
        sys.stdout.write(json.dumps({"replicas": len(workers), "ready": len(workers), "workers": workers}))
    elif verb == "prefer_removal":
        preferred = order["workers"]
    elif verb == "set_replicas":
        while len(workers) > order["replicas"]:
            workers.remove(next((name for name in preferred if name in workers), workers[-1]))
        while len(workers) < order["replicas"]:
            workers.append(f"{order['pool'][0]}{len(workers) + 1}")
    if verb != "observe":
        state.with_suffix(".new").write_text(json.dumps([workers, preferred]), "utf-8")
        state.with_suffix(".new").rename(state)
