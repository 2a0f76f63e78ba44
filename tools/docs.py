"""Build the site of the documentation into build/site; a broken link is an error. Its pages ask no other host.

python tools/docs.py
"""

import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import yaml

ROOT: Final = Path(__file__).parents[1]
BUILD: Final = ROOT / "build"
SHOWN: Final = ("docs", "deploy", "schemas", "tests", "tools", "agent", "Makefile", "LICENSE")
API: Final = ("worker", "frontend", "scaler")
"""Modules of the client with a page made of their docstrings."""
FIRST: Final = ("from-pip-install.md", "first-fleet.md", "choose-a-planner.md", "configuration.md", "architecture.md")
"""Pages that come first in their section."""
SECTIONS: Final = {"Tutorials": "tutorials", "How-to": "how-to", "Reference": "reference", "Explanation": "explanation"}
MERMAID: Final = "mermaid-11.12.1"
"""Drawer of the diagrams. The theme would load it from a foreign host."""
ITEM: Final = re.compile(r"(?:[0-9]+\. +|- )(?=\S)")
"""Start of an item of a list, whose content is indented by its length."""
INDENT: Final = 4
LOADED: Final = re.compile(r'<(?:script|img|iframe|link rel="stylesheet")[^>]*? (?:src|href)="([^"]+)"')
"""Addresses that a browser loads with a page."""
CONFIGURATION: Final = """\
site_name: loadline
docs_dir: source
hooks: [../tools/docs.py]
site_dir: site
strict: true
use_directory_urls: false
theme:
  name: material
  font: false
  features: [navigation.tabs, navigation.top, search.highlight, content.code.copy, toc.follow]
  icon: { logo: material/chart-bell-curve }
  palette:
    - { media: (prefers-color-scheme), toggle: { icon: material/brightness-auto, name: Light } }
    - media: "(prefers-color-scheme: light)"
      scheme: default
      primary: teal
      toggle: { icon: material/brightness-7, name: Dark }
    - media: "(prefers-color-scheme: dark)"
      scheme: slate
      primary: teal
      toggle: { icon: material/brightness-4, name: System }
plugins:
  - search
  - mkdocstrings: { handlers: { python: { paths: [../agent], options: { show_source: false, heading_level: 2 } } } }
markdown_extensions:
  - tables
  - toc: { permalink: true }
  - pymdownx.highlight
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
  !/agent/**/*.md
  !/schemas/**
  !/tests/**/*.py
  !/tools/**/*.py
  !/tools/**/*.txt
  !/LICENSE
  !/Makefile
  !/assets/**
  !/search/**
not_in_nav: |
  /deploy/**
  /agent/**
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
        title = f"# `loadline.client.{module}`"
        (source / "api" / f"{module}.md").write_text(f"{title}\n\n::: loadline.client.{module}\n", "utf-8")
    configuration = yaml.safe_load(CONFIGURATION) | {"nav": navigation()}
    drawer = mermaid()
    if drawer is None:
        print("npm cannot fetch mermaid: diagrams are shown as text")
    else:
        (source / "assets").mkdir()
        shutil.copy(drawer, source / "assets" / "mermaid.min.js")
        configuration["extra_javascript"] = ["assets/mermaid.min.js"]
    fences = [] if drawer is None else [{"name": "mermaid", "class": "mermaid", "format": "FENCE"}]
    configuration["markdown_extensions"].append({"pymdownx.superfences": {"custom_fences": fences}})
    file = BUILD / "mkdocs.yml"
    text = yaml.safe_dump(configuration, sort_keys=False)
    file.write_text(text.replace("FENCE", "!!python/name:pymdownx.superfences.fence_code_format"), "utf-8")
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(file))
    code = subprocess.run(command, check=False).returncode  # noqa: S603 - our own command
    found = () if code else problems(BUILD / "site")
    for problem in found:
        print(problem, file=sys.stderr)
    return code or int(bool(found))


def navigation() -> list[dict[str, object]]:
    """Return the sections of the site with their pages."""
    sections: list[dict[str, object]] = [{"Home": ["README.md", "docs/README.md"]}]
    for title, folder in SECTIONS.items():
        paths = sorted((ROOT / "docs" / folder).glob("*.md"), key=_rank)
        sections.append({title: [path.relative_to(ROOT).as_posix() for path in paths]})
    sections.append({"API": [f"api/{module}.md" for module in API]})
    sections.append({"Project": ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]})
    return sections


def _rank(path: Path) -> tuple[int, str]:
    return FIRST.index(path.name) if path.name in FIRST else len(FIRST), path.name


def on_page_markdown(markdown: str, **_: object) -> str:
    """Indent what belongs to an item of a list by four spaces, as Python-Markdown wants it; mkdocs calls this hook."""
    lines, content, fenced = [], 0, False
    for line in markdown.splitlines():
        fenced ^= line.startswith("```")
        item = None if fenced else ITEM.match(line)
        if item is not None:
            content = len(item[0])
        elif line and not line.startswith(" " * content):
            content = 0
        further = content and line.startswith(" " * content)
        lines.append(" " * (INDENT - content) + line if further else line)
    return "\n".join(lines)


def problems(site: Path) -> list[str]:
    """Return what browsers would ask of other hosts, and scripts, styles and images that are not there."""
    found = set()
    for page in site.rglob("*.html"):
        for address in LOADED.findall(page.read_text("utf-8")):
            file = (site if address.startswith("/") else page.parent) / unquote(address.partition("?")[0]).lstrip("/")
            if re.match(r"(https?:)?//", address):
                found.add(f"{page.relative_to(site)} loads {address}")
            elif not file.exists():
                found.add(f"{page.relative_to(site)} lacks {address}")
    return sorted(found)


def mermaid() -> Path | None:
    """Return the script that draws diagrams, which npm fetches once; None if it cannot."""
    script = BUILD / f"{MERMAID}.min.js"
    if not script.exists():
        npm = shutil.which("npm")
        command = [npm or "npm", "pack", "--silent", "--pack-destination", str(BUILD), MERMAID.replace("-", "@")]
        if npm is None or subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode:  # noqa: S603 - our own
            return None
        archive = BUILD / f"{MERMAID}.tgz"
        with tarfile.open(archive) as packed:
            content = packed.extractfile("package/dist/mermaid.min.js")
            assert content is not None  # noqa: S101 - a file of this version
            script.write_bytes(content.read())
        archive.unlink()
    return script


if __name__ == "__main__":
    sys.exit(main())
