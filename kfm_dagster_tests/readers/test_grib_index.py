"""Indexes of GRIB2 objects, and the datacube fields of their Items."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import Layer, ReadError
from kfm_dagster.readers.grib2_cube import MAX_CHARACTERS, MAX_SHARED, MAX_TIMES, cube
from kfm_dagster.readers.grib2_grids import Grid
from kfm_dagster.readers.grib2_properties import named
from kfm_dagster.readers.grib_index import (
    MAX_INDEX_BYTES,
    MAX_LAYERS,
    IndexEntry,
    latest_step,
    layers,
    order_fault,
    read_index,
    reference_fault,
    step_end,
    step_range,
)
from kfm_dagster.readers.ranges import BytesSource
from kfm_dagster_tests.readers.reading import Oversized, code_of

EXCERPT = ".excerpt."
"""Part of the names of files that have only selected lines of an index, not in order."""


def entry(message: int, offset: int, submessage: int = 0, **changes: str) -> IndexEntry:
    texts = {"reference": "2025120306", "variable": "TMP", "level": "surface", "step": "anl", "qualifier": ""}
    return IndexEntry(message=message, submessage=submessage, offset=offset, **(texts | changes))


REAL_LINES: list[tuple[str, str, str, int, int, str]] = [
    # Two parts of a real line, then the fields read: variable, begin and end of the step in minutes, qualifier. RRFS:
    ("REFC:entire atmosphere (considered as a single layer)", "1 hour fcst:", "REFC", 60, 60, ""),
    ("HGTMD:highest level > 1e-09 kg/m^3", "1 hour fcst:", "HGTMD", 60, 60, ""),
    ("TSOIL:0-0 m below ground", "1 hour fcst:", "TSOIL", 60, 60, ""),
    ("HGT:lowest bottom level of supercooled liquid water layer", "1 hour fcst:", "HGT", 60, 60, ""),
    ("ICEG:10 m above mean sea level", "1 hour fcst:", "ICEG", 60, 60, ""),
    ("ASNOW:surface", "0-45 min acc fcst:", "ASNOW", 0, 45, ""),
    ("MASSDEN:8 m above ground", "1 hour fcst:aerosol=Dust dry:aerosol_size >=2.5e-06,<1e-05:", "MASSDEN", 60, 60,
     "aerosol=Dust dry:aerosol_size >=2.5e-06,<1e-05"),
    ("MASSDEN:8 m above ground", "0-1 hour ave fcst:aerosol=Total aerosol:aerosol_size <2.5e-06", "MASSDEN", 0, 60,
     "aerosol=Total aerosol:aerosol_size <2.5e-06"),
    ("var discipline=1 center=7 local_table=1 parmcat=1 parm=197:surface", "0-1 hour acc fcst:prob >1:prob fcst 0/1",
     "var discipline=1 center=7 local_table=1 parmcat=1 parm=197", 0, 60, "prob >1:prob fcst 0/1"),
    # A member of RRFS; of REFS a mean, probabilities by agreement and by neighbourhood, and a spread.
    ("MAXUVV:100-1000 mb", "0-1 hour max fcst:ENS=+1", "MAXUVV", 0, 60, "ENS=+1"),
    ("MXUPHL:5000-2000 m above ground", "3 hour fcst:wt ens mean:process=193", "MXUPHL", 180, 180,
     "wt ens mean:process=193"),
    ("APCP:surface", "11-12 hour acc fcst:prob >0.254:prob fcst 0/14:process=197", "APCP", 660, 720,
     "prob >0.254:prob fcst 0/14:process=197"),
    ("PPFFG:surface", "18-24 hour acc fcst:prob >6:prob fcst 0/14:Neighborhood Probability", "PPFFG", 1080, 1440,
     "prob >6:prob fcst 0/14:Neighborhood Probability"),
    ("APCP:surface", "0-1 day acc fcst:prob >1:prob fcst 0/14:Neighborhood Probability", "APCP", 0, 1440,
     "prob >1:prob fcst 0/14:Neighborhood Probability"),
    ("DZDT:700-500 mb above ground", "6 hour fcst:ens spread", "DZDT", 360, 360, "ens spread"),
    # RTMA.
    ("CEIL:cloud ceiling", "anl:", "CEIL", 0, 0, ""),
]  # fmt: skip


def test_real_lines_of_the_rapid_refresh_systems_are_read_as_fields() -> None:
    text = "".join(
        f"{number}:{number}:d=2026092000:{field}:{step}\n" for number, (field, step, *_) in enumerate(REAL_LINES, 1)
    )
    entries = read_index(BytesSource(text.encode()))
    for (field, step, variable, begin, end, qualifier), entry in zip(REAL_LINES, entries, strict=True):
        level = field.removeprefix(f"{variable}:")
        assert (entry.variable, entry.level, entry.qualifier) == (variable, level, qualifier)
        assert entry.step == step.partition(":")[0]
        assert step_range(entry.step) == (timedelta(minutes=begin), timedelta(minutes=end))
        assert named(variable) is not None, variable


@pytest.mark.clause("OPR-07")
def test_a_malformed_or_too_large_index_is_refused() -> None:
    for case, content in {
        "empty": b"",
        "blank": b"\n",
        "blank line": b"1:0:d=2025120306:TMP:surface:anl:\n\n",
        "nan": b"1:NaN:d=2025120306:TMP:surface:anl:\n",
        "negative": b"1:-1:d=2025120306:TMP:surface:anl:\n",
        "huge offset": b"1:9999999999999999999:d=2025120306:TMP:surface:anl:\n",
        "no hour": b"1:0:d=20251203:TMP:surface:anl:\n",
        "short": b"1:0:d=2025120306:TMP:surface\n",
        "long": b"1:0:d=2025120306:" + b"T" * 100_000 + b":surface:anl:\n",
        "unicode": "1:0:d=2025120306:TMP:surface:anl:\N{SNOWMAN}\n1:0:\n".encode(),
        "digit": "\N{ARABIC-INDIC DIGIT ONE}:0:d=2025120306:TMP:surface:anl:\n".encode(),
        "many lines": b"1:0:d=2025120306:T:s:anl:\n" * 50_000,
    }.items():
        with pytest.raises(ReadError) as refused:
            read_index(BytesSource(content))
        assert (refused.value.code, len(str(refused.value)) < 400) == (MetadataIssue.SIDECAR_MISMATCH, True), case
    # An index that is too large is refused before it is read: the source has no bytes.
    with pytest.raises(ReadError, match="more than"):
        read_index(Oversized(b"", MAX_INDEX_BYTES + 1))


@pytest.mark.clause("OPR-26")
def test_a_line_that_is_out_of_order_or_missing_is_a_fault() -> None:
    for entries, fault in (
        ([entry(1, 0), entry(2, 10), entry(3, 20)], False),
        ([entry(1, 0), entry(2, 10, 1), entry(2, 10, 2), entry(3, 20)], False),
        ([entry(1, 10), entry(2, 10)], True),
        ([entry(1, 10), entry(2, 5)], True),
        ([entry(2, 0), entry(1, 10)], True),
        ([entry(1, 0), entry(1, 10)], True),
        ([entry(2, 0, 1), entry(2, 10, 2)], True),
        ([entry(2, 0, 2), entry(2, 0, 1)], True),
        ([entry(1, 0), entry(3, 20)], True),
        ([entry(1, 0), entry(2, 10, 2)], True),
        ([entry(2, 0, 1), entry(2, 0, 3)], True),
    ):
        assert (order_fault(entries) is not None) is fault


def test_a_reference_time_is_compared_at_its_own_precision() -> None:
    run = datetime(2025, 12, 3, 6, 15, tzinfo=UTC)
    assert reference_fault([entry(1, 0, reference="2025120306")], run) is None
    assert reference_fault([entry(1, 0, reference="202512030615")], run) is None
    assert reference_fault([entry(1, 0), entry(2, 9, reference="2025120307")], run) is not None


def test_the_end_of_a_step_is_read_from_its_text() -> None:
    # The latest step is in the second line, not in the last line.
    entries = [entry(1, 0), entry(2, 9, step="1-3 hour ave fcst"), entry(3, 19, step="2 hour fcst")]
    for step, end in (
        ("anl", timedelta(0)),
        ("6 hour fcst", timedelta(hours=6)),
        ("495 min fcst", timedelta(minutes=495)),
        ("90 sec fcst", timedelta(seconds=90)),
        ("0-5 hour acc fcst", timedelta(hours=5)),
        ("0-0 day max fcst", timedelta(0)),
        ("0-2 day acc fcst", timedelta(days=2)),
        ("3 month fcst", None),
        ("hour fcst", None),
        ("12345678 hour fcst", None),
    ):
        assert step_end(step) == end
    assert latest_step(entries) == timedelta(hours=3)


def test_layers_end_where_the_next_message_begins_and_submessages_share_the_bytes_of_their_message() -> None:
    entries = [entry(1, 0), entry(2, 10, 1, variable="UGRD"), entry(2, 10, 2, variable="VGRD"), entry(3, 25)]
    assert [(layer.variable, layer.offset, layer.length) for layer in layers(entries, end=40)] == [
        ("TMP", 0, 10), ("UGRD", 10, 15), ("VGRD", 10, 15), ("TMP", 25, 15),
    ]  # fmt: skip
    assert layers([entry(1, 0, qualifier="ENS=+1")], end=7) == (("TMP", "surface", "anl", "ENS=+1", 0, 7),)
    # If there are more layers than the maximum, none is returned.
    entries = [entry(number, number) for number in range(MAX_LAYERS + 1)]
    assert len(layers(entries[1:], end=MAX_LAYERS + 1)) == MAX_LAYERS
    assert layers(entries, end=MAX_LAYERS + 1) == ()


FIELD = st.text(st.characters(min_codepoint=32, max_codepoint=126, exclude_characters=":"), min_size=1, max_size=40)


@given(
    st.lists(
        st.builds(
            IndexEntry,
            message=st.integers(0, 9_999_999),
            submessage=st.integers(0, 9999),
            offset=st.integers(0, 10**15 - 1),
            reference=st.from_regex(r"\A[0-9]{10}([0-9]{2}){0,2}\Z", alphabet="0123456789"),
            variable=FIELD,
            level=FIELD,
            step=FIELD,
            qualifier=st.lists(FIELD, max_size=2).map(":".join),
        ),
        min_size=1,
        max_size=20,
    ),
    st.sampled_from("dD"),
    st.sampled_from(("\n", ":\n")),
)
def test_lines_are_read_as_they_were_written(entries: list[IndexEntry], date: str, end: str) -> None:
    """A colon at the end of a line adds no qualifier."""
    lines = [
        f"{e.message}{f'.{e.submessage}' if e.submessage else ''}:{e.offset}:{date}={e.reference}"
        f":{e.variable}:{e.level}:{e.step}{':' if e.qualifier else ''}{e.qualifier}{end}"
        for e in entries
    ]
    for content in ("".join(lines), "".join(lines).removesuffix("\n")):
        assert read_index(BytesSource(content.encode())) == tuple(entries)


@pytest.mark.clause("OPR-07")
def test_a_line_with_an_unprintable_character_is_refused() -> None:
    """Unprintable text would become a name in an Item, and no database stores a NUL."""
    line = b"1:0:d=2025120306:TMP:surface:anl:ENS=1"
    assert len(read_index(BytesSource(line))) == 1
    for sign, text in product((b"\0", b"\x1b", b"\t", b"\x7f", b"\xc3\xa9"), (b"TMP", b"surface", b"anl", b"ENS=1")):
        odd = line.replace(text, text + sign)
        assert code_of(read_index, BytesSource(odd)) is MetadataIssue.SIDECAR_MISMATCH, odd


RUN = datetime(2025, 8, 1, tzinfo=UTC)
GRID = Grid(
    template=30,
    shape=(3, 4),
    wkt2='PROJCRS["a"]',
    transform=(3000.0, 0.0, -6000.0, 0.0, -3000.0, 4500.0),
    proj_bbox=(-6000.0, -4500.0, 6000.0, 4500.0),
    geometry={},
    native={},
)
COVERED = (RUN, RUN + timedelta(hours=6))


def fields(*listed: Layer, valid: Collection[datetime] = COVERED) -> dict[str, Any]:
    return cube(GRID, listed, reference=RUN, valid=valid)


def layer(variable: str = "TMP", level: str = "surface", step: str = "6 hour fcst") -> Layer:
    return Layer(variable, level, step, "", 0, 1)


BEYOND_TABLES = {"var discipline=0 center=7 local_table=1 parmcat=16 parm=201"}
"""A parameter of HRRR that no published table has."""


@pytest.mark.clause("OPR-16", "OPR-28")
def test_real_indexes_are_read_as_if_split_at_colons_and_variables_have_units_and_long_names(shared_data: Path) -> None:
    objects, all_variables = 0, set[str]()
    for path in sorted(path for path in shared_data.rglob("*.idx") if EXCERPT not in path.name):
        name, content = path.name, path.read_bytes()
        entries, lines = read_index(BytesSource(content)), [line.split(":") for line in content.decode().splitlines()]
        numbers = [f"{entry.message}.{entry.submessage}".removesuffix(".0") for entry in entries]
        assert numbers == [line[0] for line in lines], name
        texts = [[str(line.offset), f"d={line.reference}", line.variable, line.level, line.step] for line in entries]
        assert texts == [line[1:6] for line in lines], name
        assert [entry.qualifier for entry in entries] == [":".join(line[6:]).rstrip(":") for line in lines], name
        assert order_fault(entries) is None, name
        assert all(step_end(entry.step) is not None for entry in entries), name
        listed = layers(entries, end=1 << 40)
        described_cube = fields(*listed)
        levels: dict[str, set[str]] = {}
        for _, _, _, variable, level, *_ in lines:
            levels.setdefault(variable, set()).add(level)
        variables = described_cube["cube:variables"]
        domains = {code: variable["dimension_domains"]["level"] for code, variable in variables.items()}
        assert {code: set(domain) for code, domain in domains.items()} == levels, name
        described = {code for code, variable in variables.items() if {"unit", "description"} <= variable.keys()}
        assert variables.keys() - described <= BEYOND_TABLES, name
        all_variables |= variables.keys()
        # The next object of the product shares the variables.
        assert all(variables[code] is variable for code, variable in fields(*listed)["cube:variables"].items())
        assert all(len(set(domain)) == len(domain) for domain in domains.values()), name
        assert set(described_cube["cube:dimensions"]["level"]["values"]) == set().union(*levels.values()), name
        # The name of a field in `grib:layers` begins with its variable and level.
        names = {layer.name for layer in listed}
        for code, domain in domains.items():
            assert any(text.startswith(f"{code} {domain[0]} ") for text in names), (name, code)
        objects += 1
    assert objects >= 19
    assert len(all_variables) > 150


@pytest.mark.clause("OPR-28")
def test_a_variable_has_unit_and_long_name() -> None:
    for name, unit, description in (
        ("TMP", "K", "Temperature"),
        ("HGT", "gpm", "Geopotential Height"),
        ("APCP", "kg/m^2", "Total Precipitation"),
        ("PRATE", "kg/m^2/s", "Precipitation Rate"),
        ("PVORT", "K*m^2/kg/s", "Potential Vorticity"),
        ("CRAIN", "1", "Categorical Rain"),
        # In WMO's table WILT is a density and EFHL another helicity. Older tables have CLWMR instead of CLMR.
        ("WILT", "1", "Wilting Point"),
        ("EFHL", "m^2/s^2", "Effective Storm Relative Helicity"),
        ("CLWMR", "kg/kg", "Cloud Mixing Ratio"),
        # The VIL of HRRR, not that of MRMS.
        ("VIL", "kg/m^2", "Vertically-Integrated Liquid Water"),
        ("var discipline=0 center=7 local_table=1 parmcat=7 parm=206", "degree", "Critical Angle"),
        (*BEYOND_TABLES, None, None),
    ):
        variable = fields(layer(variable=name))["cube:variables"][name]
        assert (variable.get("unit"), variable.get("description")) == (unit, description)


@pytest.mark.clause("OPR-07")
@pytest.mark.parametrize(("levels", "is_shared"), [(MAX_SHARED, True), (MAX_SHARED + 1, False)])
def test_large_variables_of_an_index_are_not_cached(levels: int, is_shared: bool) -> None:
    """Objects share a variable of the usual size; a large variable of a hostile index is not cached."""
    listed = [layer(level=f"{number} m above ground") for number in range(levels)]
    first, second = (fields(*listed)["cube:variables"]["TMP"] for _ in range(2))
    assert first == second
    assert (first is second) == is_shared


@pytest.mark.clause("OPR-16")
def test_the_units_of_fields_are_those_of_eccodes(shared_data: Path, reference: dict[str, Any]) -> None:
    """Compare by codes, because ecCodes has other names for the parameters of the real fields."""
    by_code = {(0, 0, 0): "TMP", (0, 0, 6): "DPT", (0, 1, 8): "APCP", (0, 1, 1): "RH", (0, 2, 2): "UGRD",
               (0, 2, 3): "VGRD", (0, 2, 22): "GUST", (0, 3, 0): "PRES", (0, 3, 1): "PRMSL", (0, 3, 5): "HGT",
               (0, 7, 6): "CAPE", (0, 16, 196): "REFC", (10, 0, 3): "HTSGW", (0, 19, 0): "VIS"}  # fmt: skip
    # For some fields ecCodes has "m" for a geopotential metre.
    ours = {"kg/m^2": "kg m**-2", "m/s": "m s**-1", "J/kg": "J kg**-1", "gpm": "m"}
    compared = set()
    for entry in reference.values():
        for field in entry["reference"].get("fields", []) if entry["family"] in {"hrrr", "gfs", "nbm", "nam"} else []:
            name = by_code.get((field["discipline"], field["cat"], field["num"]))
            if name is not None:
                parameter = named(name)
                assert field["units"] in {parameter.unit, ours.get(parameter.unit)}, (name, field)
                compared.add(name)
    assert len(compared) >= 4


@pytest.mark.clause("OPR-28")
def test_a_probability_and_an_aerosol_are_variables_of_their_own() -> None:
    for qualifier, name, unit, description in (
        ("", "TMP", "K", "Temperature"),
        ("ENS=+1", "TMP", "K", "Temperature"),
        ("50% level", "TMP", "K", "Temperature"),
        ("aerosol=Dust dry", "TMP aerosol=Dust dry", "K", "Temperature of Dust dry"),
        ("prob >288:prob fcst 255/255", "TMP prob", "%", "Probability of Temperature"),
    ):
        qualified = Layer("TMP", "surface", "6 hour fcst", qualifier, 0, 1)
        variables = fields(layer(level="10 m above ground"), qualified)["cube:variables"]
        assert set(variables) == {"TMP", name}
        variable = variables[name]
        assert (variable["unit"], variable["description"]) == (unit, description)
        assert "surface" in variable["dimension_domains"]["level"]


def test_with_an_unknown_step_only_the_bounds_of_the_object_s_times_are_listed() -> None:
    for step in ("1 month ave fcst", "9999999 day fcst", "something"):
        valid_time = fields(layer(), layer(step=step))["cube:dimensions"]["valid_time"]
        assert valid_time == {"type": "temporal", "extent": ["2025-08-01T00:00:00Z", "2025-08-01T06:00:00Z"]}


def test_of_too_many_times_only_the_bounds_are_listed() -> None:
    for count, listed in ((MAX_TIMES, True), (MAX_TIMES + 1, False)):
        times = {RUN + timedelta(hours=hour) for hour in range(count)}
        valid_time = fields(valid=times)["cube:dimensions"]["valid_time"]
        assert ("values" in valid_time) == listed
        assert valid_time["extent"] == [
            "2025-08-01T00:00:00Z",
            f"{RUN + timedelta(hours=count - 1):%Y-%m-%dT%H:%M:%SZ}",
        ]
        windows = fields(*(layer(step=f"{hour}-{hour + 1} hour acc fcst") for hour in range(count)))
        assert len(windows["cube:variables"]["TMP"]["time_bounds"]) == MAX_TIMES


def test_the_dimensions_x_and_y_are_the_columns_and_rows_of_the_grid() -> None:
    assert fields() == {
        "cube:dimensions": {
            "x": {"type": "spatial", "axis": "x", "extent": [-4500.0, 4500.0], "step": 3000.0,
                  "reference_system": GRID.wkt2},
            "y": {"type": "spatial", "axis": "y", "extent": [-3000.0, 3000.0], "step": 3000.0,
                  "reference_system": GRID.wkt2},
            "valid_time": {"type": "temporal", "extent": ["2025-08-01T00:00:00Z", "2025-08-01T06:00:00Z"],
                           "values": ["2025-08-01T00:00:00Z", "2025-08-01T06:00:00Z"]},
        }
    }  # fmt: skip


def test_a_variable_lists_each_level_once_even_with_several_steps() -> None:
    cube_fields = fields(
        layer(step="0-6 hour acc fcst"), layer(step="5-6 hour acc fcst"), layer(level="2 m above ground")
    )
    levels = ["surface", "2 m above ground"]
    windows = [[f"2025-08-01T{hour:02}:00:00Z", "2025-08-01T06:00:00Z"] for hour in (0, 5)]
    described = {"type": "data", "unit": "K", "description": "Temperature", "time_bounds": windows}
    shape = {"dimensions": ["valid_time", "level", "y", "x"], "dimension_domains": {"level": levels}}
    assert cube_fields["cube:variables"] == {"TMP": described | shape}
    assert cube_fields["cube:dimensions"]["level"] == {"type": "level", "values": levels}
    # The rows of a Gaussian grid have no even step.
    uneven = cube(replace(GRID, template=40, parallels=2), (layer(),), reference=RUN, valid=COVERED)["cube:dimensions"]
    assert [(uneven[axis]["step"], len(uneven[axis]["extent"])) for axis in "xy"] == [(3000.0, 2), (None, 2)]


def test_variables_and_levels_are_not_listed_beyond_the_limit_of_characters() -> None:
    for characters, listed in ((MAX_CHARACTERS, True), (MAX_CHARACTERS + 1, False)):
        whole, rest = divmod(characters - len("TMP"), 64)
        levels = [f"{number:064}" for number in range(whole)] + (["9" * rest] if rest else [])
        cube_fields = fields(*(layer(level=level) for level in levels))
        assert ("cube:variables" in cube_fields, "level" in cube_fields["cube:dimensions"]) == (listed, listed)
        assert len(orjson.dumps(cube_fields)) < 3 * MAX_CHARACTERS
        # As many fields as an HRRR file of native levels: 22 variables on each of 50 levels, and 100 on one level.
        hybrid = [layer(f"V{name}", f"{number} hybrid level") for number in range(1, 51) for name in range(22)]
        cube_fields = fields(*hybrid, *(layer(f"S{number}") for number in range(100)))
        assert len(cube_fields["cube:variables"]) == 122
        assert len(orjson.dumps(cube_fields)) < 48 * 1024
