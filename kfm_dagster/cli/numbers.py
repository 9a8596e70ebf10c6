"""Types of options and arguments that are whole numbers without a bound of their own."""

from __future__ import annotations

import click

from kfm_dagster.typed_numbers import LARGEST

COUNT = click.IntRange(0, LARGEST)
POSITIVE = click.IntRange(1, LARGEST)
