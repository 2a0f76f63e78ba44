"""The site of the documentation: its lists and sections, and what its pages may load."""

from pathlib import Path

import pytest

from tools.docs import SECTIONS, navigation, on_page_markdown, problems

ROOT = Path(__file__).parents[3]
LIST = """\
1. One:

   ```toml
   - no = "item"
   ```

2. Two
- Three
  continues

Text.

```yaml
- name: code
  kept: as it is
```
"""
INDENTED = """\
1. One:

    ```toml
    - no = "item"
    ```

2. Two
- Three
    continues

Text.

```yaml
- name: code
  kept: as it is
```"""


def test_the_content_of_items_is_indented_as_python_markdown_wants_it() -> None:
    assert on_page_markdown(LIST) == INDENTED


def test_every_document_is_in_the_navigation() -> None:
    listed = {
        path for section in navigation() for paths in section.values() if isinstance(paths, list) for path in paths
    }
    found = {
        path.relative_to(ROOT).as_posix() for name in SECTIONS.values() for path in (ROOT / "docs" / name).glob("*.md")
    }
    assert found <= listed
    assert all((ROOT / path).exists() for path in listed if not path.startswith("api/"))


@pytest.mark.parametrize(
    ("loaded", "problem"),
    [
        ('<script src="a.js"></script>', None),
        ('<img alt="x" src="sub/../a.js?v=1">', None),
        ('<a href="https://example.com">link</a>', None),
        ('<script src="b.js"></script>', "p.html lacks b.js"),
        ('<link rel="stylesheet" href="a.css">', "p.html lacks a.css"),
        ('<script async src="https://unpkg.com/x.js"></script>', "p.html loads https://unpkg.com/x.js"),
        ('<img src="//example.com/x.png">', "p.html loads //example.com/x.png"),
    ],
)
def test_pages_load_what_is_there_and_nothing_of_other_hosts(tmp_path: Path, loaded: str, problem: str | None) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.js").touch()
    (tmp_path / "p.html").write_text(loaded, "utf-8")
    assert problems(tmp_path) == ([] if problem is None else [problem])
