"""A release can be described, and its forms and workflows are valid."""

import re
from pathlib import Path

import pytest
import yaml

from tools.release_notes import notes

ROOT = Path(__file__).parents[3]
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-11-30\n\n### Added\n\n- Two.\n\n## [0.1.0]\n\n- One.\n"


def test_notes_are_the_section_of_the_version() -> None:
    assert notes(CHANGELOG, "0.2.0") == "### Added\n\n- Two.\n"
    assert notes(CHANGELOG, "0.1.0") == "- One.\n"


@pytest.mark.parametrize("version", ["Unreleased", "0.3.0", "0.2", "0.2.00", ".*"])
def test_a_version_without_notes_is_refused(version: str) -> None:
    with pytest.raises(LookupError):
        notes(CHANGELOG, version)


def test_the_changelog_has_notes_of_what_is_not_released_yet() -> None:
    assert notes((ROOT / "CHANGELOG.md").read_text("utf-8"), "Unreleased").startswith("### Breaking\n")


def test_issue_forms_have_unique_fields_with_labels() -> None:
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
    assert forms
    for path in forms:
        form = yaml.safe_load(path.read_text("utf-8"))
        assert {"name", "description", "body"} <= form.keys()
        fields = [field for field in form["body"] if field["type"] != "markdown"]
        assert len({field["id"] for field in fields}) == len(fields)
        assert all(field["attributes"]["label"] for field in fields)


def test_the_workflow_runs_what_ci_runs() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    assert set(re.findall(r"^make ([a-z]+)", script, re.MULTILINE)) <= targets
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))
    steps = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert "bash .ci/run" in steps
    assert {one.split()[1] for one in steps if one.startswith("make ")} <= targets


def test_actions_of_others_are_pinned_by_commit() -> None:
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        workflow = yaml.safe_load(path.read_text("utf-8"))
        used = [step["uses"] for job in workflow["jobs"].values() for step in job["steps"] if "uses" in step]
        assert used
        assert [one for one in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", one)] == []
