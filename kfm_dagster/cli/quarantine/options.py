"""Options of the commands about quarantined units."""

import click

from kfm_dagster.cli.completion import UNIT

wal_ids_argument = click.argument("wal_ids", type=UNIT, metavar="WAL_ID...", nargs=-1, required=True)
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
