"""The status of a deployment as one HTML page that makes no request. Does not belong here: the status itself."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from kfm_dagster.exports.deployment_status import DeploymentStatus
from kfm_dagster.exports.validation_page import STYLE, table
from kfm_dagster.ledger.state_machine import Status


def status_page(found: DeploymentStatus, *, links: Sequence[str]) -> str:
    """Return the page, with links to these other paths of its server."""
    title = "Nothing waits for anybody" if found.well else "Something waits for somebody"
    matters = table(
        "What to look at",
        ["urgency", "what", "since (UTC)", "next step"],
        (list(matter.row().values()) for matter in found.matters),
    )
    units = table(
        "Units",
        ["dataset", *Status],
        ([dataset, *(counts[status] for status in Status)] for dataset, counts in found.units.items()),
    )
    other = " ".join(f'<a href="{escape(path)}">{escape(path)}</a>' for path in links)
    at = escape(found.as_json()["at"])
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
        f"</head><body><h1>{title}</h1><p>As of {at}. More: {other}</p>{matters}{units}</body></html>\n"
    )
