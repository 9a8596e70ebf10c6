"""Parts of all pictures: arrows from border to border, scales, paths."""

from __future__ import annotations

import base64
import re

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


def test_a_scale_has_its_ends_and_the_values_between_them() -> None:
    assert [Scale(10, 20, 100, 50)(value) for value in (10, 15, 20)] == [100, 75, 50]
    assert line([(1, 2.25), (3.04, 4)]) == "M1.0 2.2L3.0 4.0"
    assert base64.b64decode(data_url("<svg/>").removeprefix("data:image/svg+xml;base64,")) == b"<svg/>"
