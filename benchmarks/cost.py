"""The monthly cost of a deployment, from prices.yaml, contracts and docs/performance.md.

    python -m benchmarks.cost
    python -m benchmarks.cost --prices FILE      # your prices

Belongs here: arithmetic for docs/deploy.md. Does not belong here: prices and numbers of events (`prices.yaml`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import yaml

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract

HERE = Path(__file__).parent
PRICES = HERE / "prices.yaml"
PERFORMANCE = HERE.parent / "docs" / "performance.md"
MEASURED = "hrrr"
"""The dataset with two rows in docs/performance.md: all files in the store, and all files but objects on the disk."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Prices and assumptions by name, and a unit's requests to the deployment's own buckets."""

    prices: Mapping[str, float]
    assumptions: Mapping[str, float]
    requests_per_unit: float

    def per_unit(self, units: float) -> dict[str, float]:
        """Return the cost of `units` units in US dollars, by service."""
        prices, assumed = self.prices, self.assumptions
        return {
            "SQS": units * assumed["sqs_requests_per_message"] * prices["sqs_million_requests"] / 1e6,
            # Counted as writes, which are the most expensive requests.
            "S3 requests": units * self.requests_per_unit * prices["s3_thousand_writes"] / 1e3,
            "S3 storage": units * assumed["kilobytes_kept_per_unit"] / 1e6 * prices["s3_gb_month"],
        }

    def fixed(self) -> dict[str, float]:
        """Return the cost of the permanent parts in US dollars a month, by part."""
        prices, assumed = self.prices, self.assumptions
        ticks = assumed["days"] * 86_400 / assumed["sensor_interval_seconds"]
        run_hours = assumed["hours"] * assumed["runs_per_hour"] * assumed["minutes_per_run"] / 60
        return {
            "code location, daemon, web server: one task of ECS": assumed["hours"] * self._fargate("task"),
            "runs: tasks of ECS": run_hours * self._fargate("run"),
            "PostgreSQL: RDS, one zone": assumed["hours"] * prices["rds_hour"]
            + assumed["rds_gb"] * prices["rds_gb_month"],
            "the sensor's requests to the queue": ticks
            * assumed["sqs_requests_per_tick"]
            * prices["sqs_million_requests"]
            / 1e6,
            "logs: CloudWatch": assumed["logs_gb"] * prices["logs_gb"],
            "on Kubernetes: the control plane of EKS, in addition": assumed["hours"] * prices["eks_hour"],
        }

    def _fargate(self, what: str) -> float:
        """Return the price of an hour of a task or run, in US dollars."""
        assumed, prices = self.assumptions, self.prices
        return assumed[f"{what}_vcpu"] * prices["fargate_vcpu_hour"] + assumed[f"{what}_gb"] * prices["fargate_gb_hour"]


def costs(prices: Path = PRICES, performance: Path = PERFORMANCE) -> Costs:
    """Read the tables' sources. Raises LookupError if the measured rows are missing."""
    document: dict[str, Any] = yaml.safe_load(prices.read_text(encoding="utf-8"))
    inside, outside = (_requests(performance, kept) for kept in ("store", "disk"))
    return Costs(prices=document["prices"], assumptions=document["assumptions"], requests_per_unit=inside - outside)


def _requests(performance: Path, kept: str) -> float:
    """Return the requests per unit of the measured row. Raises LookupError without this row."""
    column: int | None = None
    for line in performance.read_text(encoding="utf-8").splitlines():
        cells = line.strip("| ").split(" | ")
        if cells[0] == "dataset":
            column = cells.index("requests/unit") if "requests/unit" in cells else None
        elif column is not None and cells[:4] == [MEASURED, "50 ms", "sqlite", kept]:
            return float(cells[column])
    raise LookupError(f"{performance} has no row of {MEASURED} with 50 ms, sqlite, {kept}; next: make bench")


def objects_a_day(contract: DatasetContract) -> int:
    """Return a contract's expected objects on a complete day; 0 without coverage."""
    products = contract.coverage.products if contract.coverage else ()
    return sum(product.per_hour * (len(product.hours) if product.hours else 24) for product in products)


def tables(costs: Costs, registry: ContractRegistry) -> str:
    """Return both tables as Markdown."""
    fixed = costs.fixed()
    days = costs.assumptions["days"]
    lines = [*_table("part", "$ a month"), *(f"| {part} | {dollars:,.2f} |" for part, dollars in fixed.items()), ""]
    expected = {contract.id: objects_a_day(contract) for contract in registry}
    lines += _table("dataset", "objects a day", *costs.per_unit(0), "$ a month")
    for dataset, objects in expected.items():
        if objects:
            each = costs.per_unit(objects * days)
            lines.append(
                _row(dataset, f"{objects:,}", *(f"{dollars:,.2f}" for dollars in (*each.values(), sum(each.values()))))
            )
    return "\n".join(lines)


def _table(*heads: str) -> list[str]:
    return [_row(*heads), _row(*("---" for _ in heads))]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


@click.command()
@click.option(
    "--prices",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=PRICES,
    help="File of prices. Default: prices.yaml.",
)
def main(*, prices: Path) -> None:
    """Print the monthly cost of a deployment, by part and by dataset."""
    click.echo(tables(costs(prices), ContractRegistry.load()))


if __name__ == "__main__":
    main()
