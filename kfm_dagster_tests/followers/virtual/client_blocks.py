"""Run code examples that leave a scan in `image`, in this Python or, as a script, in another one."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Mapping
from typing import Any


def results(blocks: Mapping[str, str]) -> dict[str, Any]:
    """Return for each example the scan as rows of numbers, or the error as text."""
    images: dict[str, Any] = {}
    for name, code in blocks.items():
        names: dict[str, Any] = {}
        try:
            exec(code, names)
            images[name] = [[float(value) for value in row] for row in names["image"]]
        except Exception as error:
            images[name] = f"{type(error).__name__}: {error}"
    return images


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.stdout.write(json.dumps(results(json.load(sys.stdin))))
