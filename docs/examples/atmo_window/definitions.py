"""The example in the Dagster UI: one asset, a partition per hour.

    dagster dev -m docs.examples.atmo_window.definitions        (or -f docs/examples/atmo_window/definitions.py)

Belongs here: configuration in, one call, metadata out.
"""

# No postponed annotations here: Dagster reads the types of config and resources from the function itself.

from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
from pydantic import Field

from docs.examples.atmo_window.running import SAMPLE, open_workspace
from docs.examples.atmo_window.window import Window

HOURS = dg.HourlyPartitionsDefinition(start_date=datetime(2026, 3, 1, tzinfo=UTC))


class AtmoResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Folders of deliveries and windows, and the secret for the displacement of stations."""

    home: str = Field(default=".atmo", description="Folder for landed input, windows and the database.")
    weather: str = Field(default=str(SAMPLE), description="Folder of deliveries: stations, masking, observations.")
    database: str = Field(
        default="", description="sqlite:///FILE or postgresql+psycopg2://...; in the home when empty."
    )
    salt: str = Field(description="At least 16 random bytes, secret; only the environment has it.")


class WindowConfig(dg.Config):
    """Options of a run."""

    force: str = Field(default="", description="Reason to run although nothing has changed. Empty: skip in this case.")


@dg.asset(partitions_def=HOURS, group_name="atmo", kinds={"duckdb", "parquet"})
def atmo_window(context: dg.AssetExecutionContext, config: WindowConfig, atmo: AtmoResource) -> dg.MaterializeResult:  # type: ignore[type-arg]
    """Hourly means, extremes and counts per place; sensitive stations only as masked groups."""
    # A re-execution counts as the same run, so a window that has succeeded in this run is not computed again.
    run_id = context.run.root_run_id or context.run.run_id
    with open_workspace(
        home=Path(atmo.home), weather=Path(atmo.weather), database_url=atmo.database or None, salt=atmo.salt
    ) as workspace:
        done = workspace.run(
            Window(start=context.partition_time_window.start), run_id=run_id, force=config.force or None
        )
    metadata = {name: value for name, value in done.as_json().items() if isinstance(value, str | int)}
    return dg.MaterializeResult(metadata={**metadata, "artifact": done.output.record["artifact"]["uri"]})


@dg.definitions
def defs() -> dg.Definitions:
    """Return the asset and its resource; the salt is read when it is needed."""
    return dg.Definitions(assets=[atmo_window], resources={"atmo": AtmoResource(salt=dg.EnvVar("ATMO_MASKING_SALT"))})
