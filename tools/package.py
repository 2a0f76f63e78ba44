"""Build wheel and sdist, install each into a bare environment, and run the commands of a newcomer there.

python tools/package.py                the versions of requirements.lock
python tools/package.py --lowest       the lowest versions that pyproject.toml allows
python tools/package.py --python 3.13  another interpreter
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
UV: Final = Path(sys.executable).with_name("uv")
COMPARE: Final = (
    "compare", "--trace", str(ROOT / "agent/loadline/demo/data/azure2023_conv.csv.gz"), "--duration", "60", "--fleet",
    str(ROOT / "docs/examples/serving.toml"), "--config", str(ROOT / "docs/examples/auto.toml"),
)  # fmt: skip
COMMANDS: Final = (
    ("--version",),
    ("check", "--config", str(ROOT / "docs/examples/auto.toml")),
    COMPARE,
    ("up", "--for", "3s"),
)


def run(*command: str | Path, folder: Path) -> None:
    """Run a command in a folder, without this environment's packages and programs."""
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    environment["PATH"] = "/usr/bin:/bin"
    began_s = time.monotonic()
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)  # noqa: S603 - our own commands
    shown = " ".join(Path(one).name if Path(one).is_absolute() else str(one) for one in command)
    print(f"{time.monotonic() - began_s:5.1f} s  {shown}", flush=True)
    if ended.returncode:
        sys.exit(ended.stdout[-4_000:] + ended.stderr[-4_000:])


def install(distribution: Path, folder: Path, python: str, *, lowest: bool) -> Path:
    """Install a distribution into a new environment and return the folder of its commands."""
    environment = folder / distribution.suffix[1:]
    run(UV, "venv", "--quiet", "--python", python, environment, folder=folder)
    # The lock as a constraint: the versions that were tested, and nothing that the package does not require.
    versions = ("--resolution", "lowest-direct") if lowest else ("--constraint", str(ROOT / "requirements.lock"))
    python_of = environment / "bin" / "python"
    run(UV, "pip", "install", "--quiet", "--python", python_of, *versions, distribution, folder=folder)
    return environment / "bin"


def main() -> int:
    """Build, install and run; exit at the first command that fails."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--python", default=sys.executable, help="interpreter of the environments")
    options.add_argument("--lowest", action="store_true", help="install the lowest versions, and the wheel only")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "hatchling", "build", "--directory", folder / "dist", folder=ROOT)
        [wheel], [sdist] = ((folder / "dist").glob(pattern) for pattern in ("*.whl", "*.tar.gz"))
        commands = install(wheel, folder, chosen.python, lowest=chosen.lowest)
        for arguments in COMMANDS:
            run(commands / "loadline", *arguments, folder=folder)
        if not chosen.lowest:
            run(install(sdist, folder, chosen.python, lowest=False) / "loadline", "--version", folder=folder)
            uvx = (UV, "tool", "run", "--python", chosen.python, "--constraint", ROOT / "requirements.lock")
            run(*uvx, "--from", wheel, "loadline-agent", "up", "--for", "3s", folder=folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
