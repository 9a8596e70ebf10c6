"""`kfm mcp` as an assistant starts it: a process over stdio, asked by the SDK's client; and nothing is written."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.settings import Settings
from kfm_dagster_tests.commands import SERVE, state_of

TOOLS = {
    *("search_units", "explain_unit", "item", "deployment_status", "failures", "gaps"),
    *("rejections", "alerts", "datasets"),
}


def test_an_assistant_asks_over_stdio_and_changes_nothing(ledger: dict[str, NoddWalRecord], tmp_path: Path) -> None:
    import anyio
    from mcp import Client, StdioServerParameters, stdio_client

    # As what has ingested has it.
    (tmp_path / "home" / "storage").mkdir()
    before = state_of(tmp_path)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    served = StdioServerParameters(command=sys.executable, args=["-c", SERVE, "mcp"], env=environment)
    failed = ledger["failed"]

    async def converse() -> dict[str, Any]:
        # By default the client writes to the stderr of its import, which pytest may have closed since.
        async with Client(stdio_client(served, errlog=sys.__stderr__)) as client:
            tools = (await client.list_tools()).tools
            assert {tool.name for tool in tools} == TOOLS
            assert all(tool.annotations and tool.annotations.read_only_hint and tool.description for tool in tools)
            found = {}
            for name, arguments in {
                "search_units": {"status": "failed"},
                "explain_unit": {"wal_id": failed.wal_id},
                "item": {"wal_id": failed.wal_id},
                "deployment_status": {},
                "failures": {"dataset": "nexrad-l2"},
                "gaps": {"days": 2, "closed": True},
            }.items():
                found[name] = await client.call_tool(name, arguments)
            return found

    found = anyio.run(converse)
    assert [unit["wal_id"] for unit in found["search_units"].structured_content["units"]] == [failed.wal_id]
    assert found["explain_unit"].structured_content["history"][-1]["to_status"] == "failed"
    assert found["deployment_status"].structured_content["units"]["nexrad-l2"]["failed"] == 1
    assert found["failures"].structured_content["failures"][0]["code"] == failed.last_error_code
    assert found["gaps"].structured_content == {"gaps": [], "complete": True}
    assert found["item"].is_error
    assert found["item"].content[0].text.endswith(f"the unit has no Item in the catalog; observed {failed.wal_id}")
    assert state_of(tmp_path) == before


def test_what_is_wrong_is_one_line_for_the_assistant(ledger: dict[str, NoddWalRecord]) -> None:
    import anyio
    from mcp import Client

    from kfm_dagster.console.mcp_server import mcp_server

    pipeline = Pipeline.open(Settings.load(), read_only=True)
    wrong = {
        ("search_units", "status", "lost"): "observed status='lost'; expected pending or",
        ("search_units", "limit", 1_000): "less than or equal to 50",
        ("gaps", "days", 367): "less than or equal to 366",
        ("alerts", "after", "x"): "observed after='x'; expected the value in the `next` of the page before",
        ("explain_unit", "wal_id", "x"): "there is no such unit; observed 'x'; next: search units",
        ("failures", "dataset", "no-such"): "no-such",
    }

    async def converse() -> None:
        async with Client(mcp_server(pipeline)) as client:
            for (tool, name, value), line in wrong.items():
                answer = await client.call_tool(tool, {name: value})
                assert answer.is_error
                assert line in answer.content[0].text

    anyio.run(converse)
    pipeline.close()
