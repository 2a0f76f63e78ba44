"""Live view of ``loadline top``, with Textual."""

import asyncio
from typing import ClassVar, Protocol

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.coordinate import Coordinate
from textual.events import Resize
from textual.widgets import DataTable, Footer, Input, RichLog, Static

from loadline.cli.output import printable
from loadline.cli.status_output import format_details
from loadline.cli.top_rows import COLUMNS, Key, TopRow, alarm_changes, decision_changes, fleet_rows, headline, summary
from loadline.cli.top_screens import ConfirmScreen, TextScreen
from loadline.core.vocabulary.status import AgentStatus, ModelStatus
from loadline.errors import LoadlineError

COLUMNS_MIN = 79
_INTERVAL_S = 1.0


class WatchedFleet(Protocol):
    """Agent that is shown and commanded."""

    async def status(self) -> AgentStatus:
        """Return the current status."""
        ...

    async def explain(self, model: str) -> str:
        """Return the explanation of the newest decision and hold of a model."""
        ...

    async def order(self, method: str, model: str) -> None:
        """Pause or resume a model."""
        ...


class FleetTable(DataTable[Text]):
    """Table of models and pools; its own binding of Enter is not shown in the footer."""

    BINDINGS: ClassVar[list[BindingType]] = [("enter", "select_cursor", "Explain")]


class TopApp(App[None]):
    """Models and pools in a table, details of the selected model, and decisions as they come."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        ("q", "quit", "Quit"),
        ("p", "pause", "Pause/resume"),
        ("slash", "filter", "Filter"),
        ("escape", "clear_filter", "All models"),
    ]
    CSS = """
    #head { height: auto; padding: 0 1; text-style: bold; }
    DataTable { height: auto; max-height: 50%; }
    #details { height: 1fr; min-height: 4; padding: 0 1; border-top: solid $primary; }
    #details:focus { border-top: solid $accent; }
    #details Static { height: auto; }
    RichLog { height: 5; padding: 0 1; border-top: solid $primary; }
    #narrow { display: none; padding: 1; }
    Input { display: none; height: 3; }
    """

    def __init__(self, fleet: WatchedFleet, interval_s: float = _INTERVAL_S) -> None:
        super().__init__()
        self._fleet = fleet
        self._interval_s = interval_s
        self._rows: list[TopRow] = []
        self._details = ""
        self.agent: AgentStatus | None = None
        """Newest status; None before the first."""

    def compose(self) -> ComposeResult:
        """Lay out the parts of the view, and the message for a narrow terminal."""
        yield Static("", id="narrow", markup=False)
        with Vertical(id="wide"):
            yield Static("waiting for an agent", id="head", markup=False)
            yield FleetTable(cursor_type="row", cell_padding=0)
            with VerticalScroll(id="details"):
                yield Static("", markup=False)
            yield RichLog(wrap=True, max_lines=200, markup=False)
            yield Input(placeholder="part of the name of a model", id="filter")
            yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Start to follow the agent."""
        table = self.query_one(FleetTable)
        for title, width in COLUMNS:
            table.add_column(title if title == COLUMNS[0][0] else title.rjust(width), width=width + 1)
        table.focus()
        self.query_one(RichLog).can_focus = False
        self._follow()

    def on_resize(self, event: Resize) -> None:
        """Show a message instead of a view that does not fit."""
        narrow = event.size.width < COLUMNS_MIN
        text = f"loadline top needs {COLUMNS_MIN} columns; this terminal has {event.size.width}."
        self.query_one("#narrow", Static).update(f"{text} Widen it, or use `loadline status`. q quits.")
        self.query_one("#narrow").display = narrow
        self.query_one("#wide").display = not narrow

    @work
    async def _follow(self) -> None:
        while True:
            try:
                found: AgentStatus | LoadlineError = await self._fleet.status()
            except LoadlineError as error:
                found = error
            if not self.query("#head"):
                return  # the view was closed meanwhile
            if isinstance(found, LoadlineError):
                self.query_one("#head", Static).update(printable(f"no answer: {found}"))
            else:
                self._show(found)
            await asyncio.sleep(self._interval_s)

    def _show(self, agent: AgentStatus) -> None:
        log = self.query_one(RichLog)
        for line in decision_changes(self.agent, agent):
            log.write(line)
        for line in alarm_changes(self.agent, agent):
            log.write(Text(line, style="bold red"))
        self.agent = agent
        self._redraw()

    def _redraw(self) -> None:
        if self.agent is None:
            return
        rows = fleet_rows(self.agent, self.query_one(Input).value)
        shown = sum(not row.key[1] for row in rows)
        self.query_one("#head", Static).update(f"{headline(self.agent)}, {summary(self.agent, shown)}")
        table, selected = self.query_one(FleetTable), self._selected_key()
        if [row.key for row in rows] == [row.key for row in self._rows]:
            for y, row in enumerate(rows):
                for x, cell in enumerate(_cells(row) if row != self._rows[y] else ()):
                    table.update_cell_at(Coordinate(y, x), cell)
            self._rows = rows
        else:
            self._rows = rows
            table.clear()
            for row in rows:
                table.add_row(*_cells(row))
            keys = [row.key for row in rows]
            table.move_cursor(row=keys.index(selected) if selected in keys else 0, animate=False)
        self._show_details()

    def on_data_table_row_highlighted(self) -> None:
        """Show the details of the selected model."""
        self._show_details()

    def on_data_table_row_selected(self) -> None:
        """Explain the selected model on Enter."""
        self.action_explain()

    def _show_details(self) -> None:
        model = self._selected()
        lines = [] if model is None else [f"{model.model} ({model.planner} planner)", *format_details(model)]
        text = printable("\n".join(lines))
        if text != self._details:  # a slow connection gets only what has changed
            self._details = text
            self.query_one("#details Static", Static).update(text)

    def _selected_key(self) -> Key | None:
        y = self.query_one(FleetTable).cursor_row
        return self._rows[y].key if 0 <= y < len(self._rows) else None

    def _selected(self) -> ModelStatus | None:
        key = self._selected_key()
        models = self.agent.models if self.agent is not None else ()
        return next((one for one in models if key is not None and one.model == key[0]), None)

    @work(exclusive=True, group="explain")
    async def action_explain(self) -> None:
        """Show the explanation of the newest decision or hold of the selected model."""
        model = self._selected()
        if model is None:
            return
        try:
            text = await self._fleet.explain(model.model)
        except LoadlineError as error:
            text = str(error)
        await self.push_screen(TextScreen(printable(text)))

    @work(exclusive=True, group="order")
    async def action_pause(self) -> None:
        """Pause the selected model, or resume it, after a confirmation."""
        model = self._selected()
        if model is None:
            return
        method = "resume" if model.paused else "pause"
        question = f"{method.capitalize()} scaling decisions and migrations of {printable(model.model)}?"
        if not await self.push_screen_wait(ConfirmScreen(question)):
            return
        try:
            await self._fleet.order(method, model.model)
        except LoadlineError as error:
            self.notify(printable(str(error)), severity="error", markup=False)
        else:
            self.notify(printable(f"{model.model}: {method} accepted"), markup=False)

    def action_filter(self) -> None:
        """Ask for a part of the names of models."""
        field = self.query_one(Input)
        field.display = True
        field.focus()

    def action_clear_filter(self) -> None:
        """Show all models."""
        self.query_one(Input).value = ""
        self._close_filter()

    def on_input_changed(self) -> None:
        """Filter while the name is typed."""
        self._redraw()

    def on_input_submitted(self) -> None:
        """Keep the filter and return to the table."""
        self._close_filter()

    def _close_filter(self) -> None:
        self.query_one(Input).display = False
        self.query_one(FleetTable).focus()


def _cells(row: TopRow) -> list[Text]:
    style = "bold" if not row.key[1] else ""
    first, *numbers = row.cells
    widths = [width for _, width in COLUMNS[1:]]
    late = "bold red" if row.is_late else style
    styles = [late if title.endswith("ms") else style for title, _ in COLUMNS[1:]]
    right = [Text(cell.rjust(width), style=one) for cell, width, one in zip(numbers, widths, styles, strict=True)]
    return [Text(first, style=style), *right]
