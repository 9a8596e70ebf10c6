"""The beams of a volume: which facts they come from, and what is computed of them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfm_dagster.contracts.key_grammar import KeyGrammarReader
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.path.arrival import SPEED_OF_LIGHT_M_S, DeltaForm
from kfm_dagster.path.beam import Geometry
from kfm_dagster.path.refractivity import PathError
from kfm_dagster.path.uncertainty import covariance_faults
from kfm_dagster.path.volume import (
    PATTERNS,
    RANGE_M,
    PathArrival,
    PathOptions,
    VolumeFacts,
    elevations_of,
    facts_of,
    path_arrival,
)
from kfm_dagster.readers import nexrad_level2, nexrad_radar
from kfm_dagster_tests.path.beams import START, TAU, beam
from kfm_dagster_tests.readers.reading import header_of

FACTS = VolumeFacts(site="KICT", antenna_height_m=427.0, elevations_deg=PATTERNS[12], frequency_mhz=2890)


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        # Split cuts make an elevation twice; the volume's own pattern wins over its number.
        ({"nexrad:elevations": [0.483, 0.483, 0.879, 19.512], "nexrad:vcp": 212}, (0.483, 0.879, 19.512)),
        ({"nexrad:elevations": [1.8, 0.5, -0.2]}, (-0.2, 0.5, 1.8)),
        ({"nexrad:elevations": [], "nexrad:vcp": 32}, (0.5, 1.5, 2.5, 3.5, 4.5)),
        # Cuts that were made win over the pattern, of which a volume may have fewer.
        ({"nexrad:elevations": [0.5], "nexrad:pattern-elevations": [0.5, 1.5]}, (0.5,)),
        ({"nexrad:pattern-elevations": [0.5, 1.5], "nexrad:vcp": 212}, (0.5, 1.5)),
        ({"nexrad:vcp": 221}, PATTERNS[21]),
        ({"nexrad:elevations": [0.5, 359.8, 90.1, 90.0, -2.0, -2.1]}, (-2.0, 0.5, 90.0)),
        ({"nexrad:vcp": 99}, ()),
        ({}, ()),
    ],
)
def test_elevations_are_the_volume_s_own_or_its_pattern_s(
    properties: dict[str, Any], expected: tuple[float, ...]
) -> None:
    assert elevations_of(properties) == expected


def test_a_volume_without_its_frequency_has_the_band_s_middle_and_its_width() -> None:
    stated = facts_of({"nexrad:site": "KICT", "nexrad:height-m": 427, "nexrad:vcp": 12, "nexrad:frequency-mhz": 2890})
    assert stated == FACTS
    assert stated.lambda_ref_m == pytest.approx(SPEED_OF_LIGHT_M_S / 2.89e9)
    assert stated.lambda_sigma == pytest.approx(1e-4, rel=0.01, abs=0)
    unstated = facts_of({"nexrad:site": "KTLX", "nexrad:height-m": 389.4, "nexrad:vcp": 21})
    assert 0.100 < unstated.lambda_ref_m < 0.111
    assert unstated.lambda_sigma == pytest.approx(0.030, abs=0.001)
    # A volume that defines no beam is refused.
    for properties in ({"nexrad:height-m": 400}, {"nexrad:vcp": 12}, {}):
        with pytest.raises(PathError, match="define no beam"):
            facts_of(properties)


@pytest.mark.clause("PCS-11")
def test_every_elevation_has_its_arrival_with_a_positive_definite_covariance() -> None:
    found = path_arrival(FACTS, ts_start=START + timedelta(milliseconds=250), reference=START, tau=TAU)
    assert [arrival.elevation_deg for arrival in found.arrivals] == list(FACTS.elevations_deg)
    for arrival, path in zip(found.arrivals, found.beams, strict=True):
        assert arrival.delta_form is DeltaForm.GENERAL
        assert (arrival.extent_m, arrival.time_offset_s) == (RANGE_M, 0.25)
        assert arrival.t_arr_s == pytest.approx(np.sum(path.n_eff * path.d_ell) / SPEED_OF_LIGHT_M_S, rel=1e-14, abs=0)
    # The lower the beam, the more air.
    times = [arrival.t_arr_s for arrival in found.arrivals]
    assert times == sorted(times, reverse=True)
    assert min(times) > RANGE_M / SPEED_OF_LIGHT_M_S
    assert not covariance_faults(found.t_covariance)
    assert found.phase_covariance.shape == (len(times), 2, 2)
    assert not any(covariance_faults(matrix) for matrix in found.phase_covariance)
    assert np.diag(found.t_covariance) == pytest.approx(found.phase_covariance[:, 0, 0], rel=1e-12, abs=0)


@pytest.mark.clause("PCS-11")
def test_every_real_volume_from_1991_on_tells_its_beams(shared_data: Path, contracts: ContractRegistry) -> None:
    grammar = KeyGrammarReader(contracts["nexrad-l2"])
    bucket = shared_data / "objects" / "unidata-nexrad-level2"
    found: dict[str, PathArrival] = {}
    for file in sorted(path for path in bucket.rglob("*") if path.is_file()):
        key = file.relative_to(bucket).as_posix()
        match = grammar.match(key)
        assert match is not None
        header = header_of("nexrad-level2", file.read_bytes(), groups=match.groups)
        times = {"ts_start": match.start, "reference": header.datetime, "tau": nexrad_level2.TIME_TOLERANCE}
        found[file.name[:12]] = path_arrival(facts_of(header.properties), **times)
    assert len(found) == 9
    for arrival in found.values():
        assert not covariance_faults(arrival.t_covariance)
    assert found["KTLX19910605"].facts.elevations_deg == PATTERNS[21]
    assert found["KDMX20250101"].facts.lambda_ref_m == pytest.approx(SPEED_OF_LIGHT_M_S / 2.72e9)


def test_options_change_what_they_say() -> None:
    options = PathOptions(range_m=230_000.0, geometry=Geometry.EFFECTIVE_EARTH, delta_form=DeltaForm.FACTORED)
    found = path_arrival(FACTS, ts_start=START, reference=START, tau=TAU, options=options)
    assert {(a.geometry, a.delta_form, a.extent_m) for a in found.arrivals} == {
        (Geometry.EFFECTIVE_EARTH, DeltaForm.FACTORED, 230_000.0)
    }
    same = {"range_m": 230_000.0, "geometry": Geometry.EFFECTIVE_EARTH, "antenna_height_m": 427.0}
    alone = beam(0.5, profile=options.profile, panel_m=2_500.0, **same)
    assert found.beams[0].height_m == pytest.approx(alone.height_m, abs=1e-6)
    # The reach is that of the footprint.
    assert PathOptions().range_m == RANGE_M == nexrad_radar.RANGE_M
    with pytest.raises(PathError, match="at least 2000"):
        path_arrival(FACTS, ts_start=START, reference=START, tau=TAU, options=PathOptions(min_points=2_000))


def test_volumes_of_one_site_and_pattern_share_their_beams() -> None:
    found = [
        path_arrival(FACTS, ts_start=START + timedelta(milliseconds=late), reference=START, tau=TAU)
        for late in range(0, 1000, 250)
    ]
    for shared in ("beams", "t_covariance", "phase_covariance"):
        assert len({id(getattr(each, shared)) for each in found}) == 1
    assert [{arrival.time_offset_s for arrival in each.arrivals} for each in found] == [{0.0}, {0.25}, {0.5}, {0.75}]
