"""`kfm announcements`: states of subscriptions, refused events, and events that are sent again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kfm_dagster.configs import own_folder
from kfm_dagster.errors import ExitCode
from kfm_dagster.followers.announcements.plan import ANNOUNCEMENTS
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.settings import Settings
from kfm_dagster.storage.fence import open_fence
from kfm_dagster_tests.catalog.envelopes import candidates, goes
from kfm_dagster_tests.commands import Call
from kfm_dagster_tests.followers.announcements.web_server import WebAnswer, WebRequest, WebServer

pytestmark = pytest.mark.clause("OPR-22")

SECRET = "s3cr3t-word"
WELL, WRONG = "well", "wrong"


@pytest.fixture
def home(home: Path, monkeypatch: pytest.MonkeyPatch, web_server: WebServer) -> Path:
    configs = home.with_name("configs")
    shutil.copytree(own_folder(), configs)
    lines = [
        f'  - {{name: {name}, target: {{webhook: "{web_server.url(name)}?code={SECRET}"}}}}' for name in (WELL, WRONG)
    ]
    (configs / ANNOUNCEMENTS).write_text('version: "1.0.0"\nsubscriptions:\n' + "\n".join(lines), encoding="utf-8")
    monkeypatch.setenv("KFM_CONFIGS_DIR", str(configs))
    return home


@pytest.fixture
def announced(home: Path, web_server: WebServer) -> list[str]:
    """Announce five Items, of which a receiver refuses the first; return the ids of all in order."""
    pipeline = Pipeline.open(Settings.load())
    items = candidates(pipeline.registry, [goes(number) for number in range(5)])
    ids = [item.item_id for item in items]
    refused = ids[0].encode()

    def answer(request: WebRequest) -> WebAnswer:
        return WebAnswer(status=422 if request.path.startswith(f"/{WRONG}") and refused in request.body else 200)

    web_server.answers = answer
    pipeline.catalog.register(items, fence=open_fence)
    pipeline.following.catch_up(pipeline.followers)
    pipeline.close()
    return ids


def test_the_list_has_each_subscriptions_state_and_refused_events_can_be_sent_again(
    announced: list[str], call: Call, web_server: WebServer
) -> None:
    shown = call("announcements", "list", "--json")
    assert shown.code == ExitCode.FINISHED_WITH_FAILURES
    names = ("sent", "waiting", "failing", "refused")
    counts = {row["subscription"]: [row[name] for name in names] for row in shown.rows}
    assert counts == {WELL: [5, 0, 0, 0], WRONG: [4, 0, 0, 1]}
    assert SECRET not in shown.out + call("announcements", "list").out

    shown = call("announcements", "failing", "--json")
    [trouble] = shown.rows
    assert shown.code == ExitCode.DONE
    assert (trouble["subscription"], trouble["item_id"], trouble["state"]) == (WRONG, announced[0], "refused")
    assert trouble["last_error"] == "HTTP 422"

    resent = call("announcements", "resend", WRONG, "--json")
    assert resent.code == ExitCode.FINISHED_WITH_FAILURES
    assert resent.document == {"subscription": WRONG, "taken": 0, "refused": 1}
    web_server.answers = lambda _: WebAnswer()
    assert call("announcements", "resend", WRONG) == (ExitCode.DONE, f"{WRONG}: 1 taken, 0 refused\n", "")
    assert len({json.loads(body)["id"] for *_, body in web_server.requests}) == 5
    assert call("announcements", "list").code == ExitCode.DONE


def test_all_events_can_be_sent_again_with_the_same_ids_to_a_receiver_that_lost_its_items(
    announced: list[str], call: Call, web_server: WebServer
) -> None:
    before = {body for _, path, _, body in web_server.requests if path.startswith(f"/{WELL}")}
    web_server.requests.clear()
    resent = call("announcements", "resend", WELL, "--all", "--json")
    assert (resent.code, resent.document) == (ExitCode.DONE, {"subscription": WELL, "changes": 5, "refused": 0})
    assert {body for *_, body in web_server.requests} == before
    assert len(web_server.requests) == 5


def test_an_unreachable_receiver_is_reported(announced: list[str], call: Call, web_server: WebServer) -> None:
    web_server.answers = lambda _: WebAnswer(status=503)
    code, _, error = call("announcements", "resend", WRONG)
    assert code == ExitCode.DEPENDENCY_UNAVAILABLE
    assert f"{WRONG}: HTTP 503" in error
    assert SECRET not in error


def test_an_unknown_subscription_is_refused(home: Path, call: Call, announced: list[str]) -> None:
    for arguments in (("resend", "nobody"), ("failing", "nobody")):
        call("announcements", *arguments).refused(f"observed nobody; expected {WELL}, {WRONG}")
    (home.with_name("configs") / ANNOUNCEMENTS).write_text('version: "1.0.0"\nsubscriptions: []', encoding="utf-8")
    assert call("announcements", "list")[:2] == (ExitCode.DONE, "no subscriptions (announcements.yaml)\n")
