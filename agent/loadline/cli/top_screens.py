"""Screens over the live view: an explanation, and a confirmation."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static


class TextScreen(ModalScreen[None]):
    """A text to scroll through."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,enter", "dismiss", "Close")]
    CSS = "TextScreen > VerticalScroll { border: round $primary; background: $surface; padding: 0 1; }"

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """Show the text, and the keys that close it."""
        with VerticalScroll() as box:
            box.border_title = "arrows scroll, escape closes"
            yield Static(self._text, markup=False)


class ConfirmScreen(ModalScreen[bool]):
    """A question; only ``y`` confirms."""

    BINDINGS: ClassVar[list[BindingType]] = [("y", "answer(True)", "Yes"), ("n,escape,q,enter", "answer(False)", "No")]
    CSS = """
    ConfirmScreen { align: center middle; }
    ConfirmScreen > Vertical { border: round $warning; width: 60; height: auto; padding: 1 2; background: $surface; }
    """

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """Show the question."""
        with Vertical():
            yield Static(f"{self._question}\n\ny: yes, n: no", markup=False)

    def action_answer(self, confirmed: bool) -> None:  # noqa: FBT001 - textual passes arguments by position
        """Close with the answer."""
        self.dismiss(confirmed)
