"""Places of counts inside objects, such as ``spec.template.spec.roles[name=decode].replicas``. Pure."""

import re
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from loadline.adapters.kubernetes_api import Object


class Step(Struct, frozen=True):
    """A key of an object, and in a list the element of that name."""

    key: str
    element: str = ""


def parse_place(text: str) -> tuple[Step, ...]:
    """Return the steps of a place."""
    return tuple(Step(key, element) for key, element in re.findall(r"([\w-]+)(?:\[name=([^\]]+)\])?(?:\.|$)", text))


def value_at(content: Any, steps: Sequence[Step]) -> Any:
    """Return the value at a place; None: there is none."""
    for step in steps:
        content = content.get(step.key) if isinstance(content, dict) else None
        if step.element:
            content = _element(content, step.element)
    return content


def patch_at(content: Object, steps: Sequence[Step], value: int) -> Object:
    """Return the merge patch that sets a place; it repeats lists whole, as merge patches replace them."""
    step, rest = steps[0], steps[1:]
    inner = content.get(step.key)
    if step.element:
        items = inner if isinstance(inner, list) else []
        return {step.key: [_with(item, rest, value) if _is(item, step.element) else item for item in items]}
    return {step.key: patch_at(inner if isinstance(inner, dict) else {}, rest, value) if rest else value}


def _with(item: Object, steps: Sequence[Step], value: int) -> Object:
    """Return an element of a list with a place set."""
    patch = patch_at(item, steps, value)
    return _merged(item, patch)


def _merged(content: Object, patch: Object) -> Object:
    both = dict(content)
    for key, value in patch.items():
        present = both.get(key)
        both[key] = _merged(present, value) if isinstance(present, dict) and isinstance(value, dict) else value
    return both


def _is(item: Any, name: str) -> bool:
    return isinstance(item, dict) and item.get("name") == name


def _element(items: Any, name: str) -> Any:
    return next((item for item in items if _is(item, name)), None) if isinstance(items, list) else None
