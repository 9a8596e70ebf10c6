"""Pages: the templates, the frame of every page, and the form of values and tables.

A page needs no script: it has links, forms, pictures drawn here, and a refresh for a live view. Does not belong here:
the content of a page (the module of its routes).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus
from importlib import resources
from typing import Any
from urllib.parse import parse_qsl, urlencode

import jinja2
from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from kfm_dagster.console.requests import BadRequestError, parameters_by_name, whole_number
from kfm_dagster.console.session import Sessions
from kfm_dagster.contracts.identity import SHORTEST_PREFIX, rfc3339
from kfm_dagster.exports.validation import figure, report_tables
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.plural import counted
from kfm_dagster.settings import Environment
from kfm_dagster.views.view import View, value_of

Links = Mapping[str, Callable[[Any], str | None]]
"""Link targets of a column's values, by the column's name; None for no link."""
_PAGES = {
    "dataset": "/datasets/{}",
    "wal_id": "/units/{}",
    "run_id": "/runs/{}",
    "replay_run_id": "/replays/{}",
}
_STATES = {"status", "to_status", "state", "level", "urgency"}
_WORDS = {
    "change": "effect",
    "exact": "all counted",
    "next_step": "in a terminal",
    "object_uri": "object",
    "partition_key": "day",
    "replay_run_id": "replay",
    "run_id": "run",
    "to_status": "status",
    "version": "no.",
    "wal_id": "unit",
}
_CODE = {"next_step", "replay_run_id", "run_id", "wal_id"}


def heading(rows: Iterable[Any], name: str) -> Markup:
    """Return a column's heading: its name in words."""
    kind = Markup(' class="number"') if int in {type(value_of(row, name)) for row in rows} else ""
    return Markup('<th scope="col"{}>{}</th>').format(kind, _words(name))


@jinja2.pass_context
def cell(context: Mapping[str, Any], row: Any, name: str, links: Links) -> Markup:
    """Return a row's cell in a column, labelled for narrow screens; ids are shown as prefixes."""
    value = value_of(row, name)
    is_whole = isinstance(value, datetime) or name in _PAGES
    kind = ' class="number"' if type(value) is int else ' class="whole"' if is_whole else ""
    content = time(context, value) if isinstance(value, datetime) else "" if value is None else _content(name, value)
    address = links[name](row) if name in links else _PAGES[name].format(value) if value and name in _PAGES else None
    if address is not None:
        content = Markup('<a href="{}">{}</a>').format(address, content)
    label = Markup(' data-label="{}"').format(_words(name))
    return Markup("<td{}{}>{}</td>").format(Markup(kind), label, content)  # noqa: S704, a text of this function


@jinja2.pass_context
def time(context: Mapping[str, Any], value: datetime | None) -> Markup:
    """Return a UTC time to the second; within RECENT show its age, and the time as the title."""
    if value is None:
        return Markup('<span class="soft">none</span>')
    text = rfc3339(value, timespec="seconds")
    absolute = text.replace("T", " ").replace("Z", " UTC")
    age = context["at"] - value
    largest = " ".join(duration(age).split()[:2])
    is_recent = timedelta(0) <= age < RECENT
    shown = absolute if not is_recent else "now" if age < timedelta(seconds=1) else f"{largest} ago"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(text, absolute, shown)


def _words(name: str) -> str:
    return _WORDS.get(name, name.replace("_", " "))


def _content(name: str, value: Any) -> Markup | str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name in _STATES:
        return Markup('<span class="badge {}">{}</span>').format(value, value.replace("_", " "))
    if name in _CODE:
        return Markup("<code>{}</code>").format(value[:SHORTEST_PREFIX] if name in _PAGES else value)
    if name == "object_uri":
        return Markup('<code title="{}">{}</code>').format(value, value.rpartition("/")[2])
    return f"{value:,}" if isinstance(value, int) else value if isinstance(value, Markup) else str(value)


RECENT = timedelta(days=2)
"""A younger time is shown as an age."""
LIVE_SECONDS = 15
"""Refresh interval of a live view; a page takes some hundredths of a second."""
PAGE = 50
"""Rows of a page: so many as a person reads in some seconds."""
MOST_ROWS = 200
"""Rows of a list without pages."""
NAVIGATION: Sequence[tuple[str, str]] = (
    ("/", "Overview"),
    ("/units", "Units"),
    ("/failures", "Failures"),
    ("/rejected", "Rejected"),
    ("/gaps", "Gaps"),
    ("/alerts", "Alerts"),
    ("/replays", "Replays"),
    ("/decisions", "Decisions"),
    ("/validate", "Validation"),
)
STATIC: Mapping[str, str] = {"console.css": "text/css", "icon.svg": "image/svg+xml"}
REPORT_OPENING = b'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Validation, '
_LIVE = "live"


Answer = Callable[[Request, Mapping[str, str]], Response]
"""Returns the answer to a form's fields."""


@dataclass(frozen=True, kw_only=True)
class Pages:
    """Renders pages; `pipeline` only reads, `deciding` makes decisions (None without tokens)."""

    pipeline: Pipeline
    sessions: Sessions
    deciding: Pipeline | None = None

    @property
    def writing(self) -> Pipeline:
        """The pipeline that carries out decisions. Raises HTTPException if the console only reads."""
        if self.deciding is None:
            raise HTTPException(HTTPStatus.FORBIDDEN, "the console only reads: KFM_CONSOLE_TOKENS is not set")
        return self.deciding

    def form(self, path: str, answer: Answer) -> Route:
        """Return the route of a form. Its fields are read first, because `answer` runs in a thread."""

        async def posted(request: Request) -> Response:
            pairs = parse_qsl(
                (await request.body()).decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=50
            )
            if len(dict(pairs)) < len(pairs):
                raise BadRequestError(observed="a field twice", expected="each once")
            return await run_in_threadpool(answer, request, dict(pairs))

        return Route(path, posted, methods=["POST"])

    def page(self, request: Request, template: str, *, status: int = 200, **content: Any) -> Response:
        """Return a page; a `live` view refreshes itself."""
        frame = {
            "path": request.url.path,
            "navigation": NAVIGATION,
            "env": self.pipeline.settings.env.value,
            "actor": self.sessions.actor_of(request),
            # A decision's form requires the reference in prod; the form of a release always requires it.
            "change_ref": "required" if self.pipeline.settings.env is Environment.PROD else "",
            "can_sign_in": bool(self.sessions.tokens),
            "at": self.pipeline.clock(),
            "live_seconds": LIVE_SECONDS if is_live(request) else None,
            "live_link": with_query(request, **{_LIVE: None if is_live(request) else "1"}),
            "run_link": self._run_link,
        }
        return HTMLResponse(_TEMPLATES.get_template(template).render(frame | content), status_code=status)

    def _run_link(self, run_id: str) -> str | None:
        """Return the Dagster UI's page of a run, if the UI's address is known."""
        url = self.pipeline.settings.dagster_url
        return f"{url.rstrip('/')}/runs/{run_id}" if url else None


def is_live(request: Request) -> bool:
    """Return whether a request is for a live view."""
    return request.query_params.get(_LIVE) == "1"


def parameters(request: Request) -> list[tuple[str, str]]:
    """Return the query's parameters without `live`. Raises BadRequestError for a wrong `live`."""
    pairs = request.query_params.multi_items()
    if any(value != "1" for name, value in pairs if name == _LIVE):
        raise BadRequestError(observed=f"{_LIVE}={request.query_params[_LIVE][:40]!r}", expected=f"{_LIVE}=1 or none")
    return [(name, value) for name, value in pairs if name != _LIVE]


def query_of(request: Request, *known: str) -> dict[str, str]:
    """Return known parameters, without `live`, or raise BadRequestError for an unknown one."""
    return parameters_by_name(parameters(request), known=known)


def list_route(
    pages: Pages, view: View, path: str, template: str = "list.html", **content: Callable[[Any], Any]
) -> Route:
    """Return the route of a view's list with its filter's form; `content` computes more values.

    The route raises BadFilterError, BadRequestError, and KfmError for an unknown dataset.
    """

    def answer(request: Request) -> Response:
        pairs = parameters(request)
        has_pages = view.end == "next"
        row_filter = view.filter.of_query((name, value) for name, value in pairs if name != "after" or not has_pages)
        after = dict(pairs).get("after") or None
        page = view.query(pages.pipeline, row_filter, after, PAGE if has_pages else MOST_ROWS)
        return pages.page(
            request,
            template,
            view=view,
            row_filter=row_filter,
            rows=page.rows,
            datasets=sorted(pages.pipeline.registry.contracts),
            first_link=with_query(request, after=None) if after else None,
            next_link=with_query(request, after=page.after) if page.after and has_pages else None,
            more=page.after and not has_pages,
            **{name: value_of(row_filter) for name, value_of in content.items()},
        )

    return Route(path, answer, methods=["GET"])


def row_id(request: Request, name: str) -> int:
    """Return a part of the path as a number. Raises BadRequestError."""
    return whole_number(name, str(request.path_params[name]))


def rendered(template: str, **content: Any) -> Markup:
    """Return a part of a page."""
    return Markup(_TEMPLATES.get_template(template).render(content))  # noqa: S704, the template escapes


def validation_page(report: Mapping[str, Any]) -> str:
    """Return a validation report as a self-contained page that begins with REPORT_OPENING."""
    return rendered("report.html", report=report, tables=report_tables(report))


def with_query(request: Request, **changes: str | None) -> str:
    """Return this page's address with parameters changed; None removes a parameter."""
    unchanged = [(name, value) for name, value in request.query_params.multi_items() if name not in changes and value]
    query = urlencode([*unchanged, *((name, value) for name, value in changes.items() if value is not None)])
    return f"{request.url.path}?{query}" if query else request.url.path


def static(request: Request) -> Response:
    """Return a file that pages refer to."""
    name = request.url.path.rpartition("/")[2]
    content = (resources.files("kfm_dagster.console") / "static" / name).read_bytes()
    return Response(content, media_type=STATIC[name], headers={"cache-control": "max-age=300"})


def duration(value: timedelta | float) -> str:
    """Return a duration by its two largest parts, such as 2 h 5 min; a second 0 is left out."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    hours = minutes // 60
    if minutes < 60:
        text = f"{minutes} min {int(seconds % 60)} s"
    else:
        text = f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
    return re.sub(" 0 [a-z]+$", "", text)


def percentage(share: float | None) -> str:
    """Return a share (0 to 1) as a percentage rounded down to two decimals; `none` for None."""
    return "none" if share is None else f"{math.floor(share * 10_000) / 100:g} %"


_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("kfm_dagster.console"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)
_TEMPLATES.filters |= {
    "cell": cell,
    "counted": counted,
    "duration": duration,
    "figure": figure,
    "heading": heading,
    "number": "{:,}".format,
    "percentage": percentage,
    "query": urlencode,
    "time": time,
}
