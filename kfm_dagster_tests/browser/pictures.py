"""Screenshots for the documentation, saved in few colours by the tests that visit the pages."""

from __future__ import annotations

import io
import os
from pathlib import Path

from PIL import Image

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "images"
COLOURS = 256
"""Colours of the palette, chosen by an octree, because a median cut would merge the few red and green points."""
LEAST_BYTES, MOST_BYTES = 10_000, 120_000


def keep_picture(screenshot: bytes, name: str, elsewhere: Path) -> None:
    """Write a picture to `elsewhere`, or to docs/images if KFM_WRITE_PICTURE=1; check the file's size."""
    picture = (PICTURES if os.environ.get("KFM_WRITE_PICTURE") == "1" else elsewhere) / name
    Image.open(io.BytesIO(screenshot)).convert("RGB").quantize(COLOURS, Image.Quantize.FASTOCTREE).save(
        picture, optimize=True
    )
    assert LEAST_BYTES < picture.stat().st_size < MOST_BYTES
