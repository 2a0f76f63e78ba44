"""Build the site of the documentation into build/site; a broken link is an error. Nothing of it asks another host.

python tools/docs.py
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
BUILD: Final = ROOT / "build"
SHOWN: Final = ("docs", "deploy", "schemas", "tests", "tools", "agent", "Makefile", "LICENSE")
API: Final = ("worker", "frontend", "scaler")
"""Modules of the client with a page made of their docstrings."""
CONFIGURATION: Final = """\
site_name: loadline
docs_dir: source
site_dir: site
strict: true
use_directory_urls: false
theme: { name: material, font: false, features: [navigation.top, search.highlight] }
plugins:
  - search
  - mkdocstrings: { handlers: { python: { paths: [../agent] } } }
markdown_extensions: [tables, pymdownx.superfences, toc]
exclude_docs: |
  *
  !/README.md
  !/CHANGELOG.md
  !/CONTRIBUTING.md
  !/SECURITY.md
  !/docs/**
  !/deploy/**
  !/api/**
  !/agent/**/*.py
  !/schemas/**
  !/tests/**/*.py
  !/tools/**/*.py
  !/LICENSE
  !/Makefile
validation: { links: { anchors: warn, not_found: warn, unrecognized_links: ignore } }
"""


def main() -> int:
    """Gather the sources as links, so that relative links resolve as in the repository, and build."""
    source = BUILD / "source"
    shutil.rmtree(source, ignore_errors=True)
    (source / "api").mkdir(parents=True)
    for path in (*(ROOT / name for name in SHOWN), *ROOT.glob("*.md")):
        (source / path.name).symlink_to(path)
    for module in API:
        (source / "api" / f"{module}.md").write_text(f"::: loadline.client.{module}\n", "utf-8")
    configuration = BUILD / "mkdocs.yml"
    configuration.write_text(CONFIGURATION, "utf-8")
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(configuration))
    return subprocess.run(command, check=False).returncode  # noqa: S603 - our own command


if __name__ == "__main__":
    sys.exit(main())
