"""What all pictures share: arrows from border to border, scales, paths."""

from __future__ import annotations

import base64
import re

from kfm_dagster.defs.display import arrival_plot
from kfm_dagster.drawing.svg import Arrow, Scale, StateGraph, data_url, line

GRAPH = StateGraph(places={"a": (0, 0), "b": (1, 1)}, column=200)


def test_an_arrow_leads_from_border_to_border_with_its_labels_at_its_middle() -> None:
    assert GRAPH.size == (402, 236)
    bent = Arrow(bend=0.2, labels=[("n", "1"), ("w", "<")], dashed=True)
    drawn = GRAPH.arrows({("a", "b"): bent, ("b", "a"): Arrow()})
    assert re.findall(r'<path class="(edge.*?)" d="(.*?)"', drawn) == [
        ("edge override", "M165.0 72.8Q221.4 78.0 275.4 139.7"), ("edge", "M245.4 140.6Q201.0 118.0 156.6 95.4"),
    ]  # fmt: skip
    labels = re.findall(r'<text class="label" id="(.)" x="(.*?)" y="(.*?)" text-anchor="middle">(.*?)<', drawn)
    assert labels == [("n", "220.8", "87.1", "1"), ("w", "220.8", "105.1", "&lt;")]


def test_a_state_has_its_lines_in_the_middle_of_its_box() -> None:
    rect = r'<g id="(.)"><rect class="state (.)" x="(\d+)" y="(\d+)" width="122" height="54" rx="8"/>'
    text = r'<text class="(\w*)" x="(\d+)" y="(\d+)" text-anchor="middle">(.*?)</text>'
    both, one = GRAPH.box("a", ["1", "x"]), GRAPH.box("b", ["&"], name="n")
    assert re.findall(rect, both + one) == [("a", "a", "40", "40"), ("n", "b", "240", "142")]
    assert re.findall(text, both) == [("count", "101", "64", "1"), ("", "101", "82", "x")]
    assert re.findall(text, one) == [("", "301", "173", "&amp;")]


def test_a_scale_has_its_ends_and_steps_between_them() -> None:
    assert Scale(10, 20, 100, 50).steps(2) == [(10, 100), (15, 75), (20, 50)]
    assert line([(1, 2.25), (3.04, 4)]) == "M1.0 2.2L3.0 4.0"
    assert base64.b64decode(data_url("<svg/>").removeprefix("data:image/svg+xml;base64,")) == b"<svg/>"


def arrival(site: str, volume: str, elevation: float, seconds: float, metres: float = 0.0) -> dict[str, object]:
    row = {"site": site, "wal_id": volume, "elevation_deg": elevation, "t_arr_s": seconds}
    return {**row, "extent_m": metres, "c_ref_m_s": 3e8}


def test_arrivals_are_a_curve_a_site_over_axes_that_hold_every_point() -> None:
    first = arrival("A", "1", 0.5, 3e-7)
    rows = [first, arrival("A", "1", 20, 1.1e-6, 300), arrival("A", "2", 9, 9), arrival("B", "3", -0.5, 2e-7)]
    shown = []
    for some in (rows, [first], [arrival("A", "1", 2, 1e-10)]):
        markdown = arrival_plot(some)
        assert markdown is not None
        svg = base64.b64decode(markdown.partition("base64,")[2].partition(")")[0]).decode()
        shown.append((re.findall(r'<path d="([^"]*)"/>', svg), re.findall(r">([-\d.]+)</text>", svg)))
    assert "Sites: 2; drawn: 2." in str(arrival_plot(rows))
    above = ["0", "79", "158", "236", "315"]
    assert shown == [
        (["M91.4 27.6L704.0 182.5", "M60.0 105.1"], ["-0.5", "4.6", "9.8", "14.9", "20.0", *above]),
        (["M382.0 27.6"], ["0.0", "0.2", "0.5", "0.8", "1.0", *above]),
        (["M704.0 236.8"], ["0.0", "0.5", "1.0", "1.5", "2.0", "0", "0", "1", "1", "1"]),
    ]
    assert arrival_plot([]) is None
