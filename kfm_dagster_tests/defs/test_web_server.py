"""The Dagster UI's web server refuses requests from pages of other sites."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin, Subprotocol

from kfm_dagster.deployment.local import free_port
from kfm_dagster_tests.programs import run_program, running
from kfm_dagster_tests.timeouts import HANG_SECONDS

WEB_SERVER = [sys.executable, "-m", "kfm_dagster.defs.web_server", "--empty-workspace"]
JSON = {"Content-Type": "application/json"}
MUTATION = 'mutation { setConcurrencyLimit(concurrencyKey: "%s", limit: 1) }'
LIMITS = "{ instance { concurrencyLimits { concurrencyKey } } }"
NAVIGATION = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
Headers = Mapping[str, str]
pytestmark = pytest.mark.clause("SEC-10")


@dataclass(frozen=True, kw_only=True)
class Served:
    """A web server over an empty workspace."""

    port: int

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def ask(self, path: str, *, method: str = "GET", body: str | None = None, **headers: str) -> tuple[int, str]:
        """Send a request and return status and text."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=HANG_SECONDS)
        try:
            connection.request(method, path, body=body, headers=headers)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def limits(self) -> set[str]:
        """Return the limits that mutations have set."""
        status, text = self.ask("/graphql", method="POST", body=json.dumps({"query": LIMITS}), **JSON)
        assert status == 200, text
        return {limit["concurrencyKey"] for limit in json.loads(text)["data"]["instance"]["concurrencyLimits"]}

    def subscribe(self, query: str, **headers: str) -> dict[str, Any]:
        """Return the answer to an operation over a WebSocket. Raises InvalidStatus if it is refused."""
        origin = headers.pop("Origin", None)
        with connect(
            f"ws://{self.host}/graphql",
            origin=None if origin is None else Origin(origin),
            subprotocols=[Subprotocol("graphql-ws")],
            additional_headers=headers,
            open_timeout=HANG_SECONDS,
        ) as socket:
            socket.send(json.dumps({"type": "start", "id": "1", "payload": {"query": query}}))
            answer: dict[str, Any] = json.loads(socket.recv(timeout=HANG_SECONDS))
            return answer


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home, server = tmp_path_factory.mktemp("web"), Served(port=free_port())
    command = [*WEB_SERVER, "-h", "127.0.0.1", "-p", str(server.port)]
    variables = {"DAGSTER_HOME": str(home), "KFM_DAGSTER_URL": "https://dagster.example.org"}

    def answers() -> bool:
        with suppress(OSError):
            return server.ask("/server_info")[0] == 200
        return False

    with running(command, home / "log", ready=answers, **variables):
        yield server


def test_a_mutation_without_json_or_from_another_site_is_refused(served: Served) -> None:
    def document(name: str) -> str:
        return json.dumps({"query": MUTATION % name})

    own = f"http://{served.host}"
    by_link = f"/graphql?query={quote(MUTATION % 'x')}"
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    refused: dict[str, tuple[int, str, str, str | None, Headers]] = {
        "a link": (405, "GET", by_link, None, {}),
        "a link that a person follows": (405, "GET", by_link, None, {"Sec-Fetch-Site": "cross-site", **NAVIGATION}),
        "a link with a line end": (405, "GET", by_link.replace("?", "%0a?"), None, {}),
        "a form": (415, "POST", by_link, "x=1", form),
        "no type": (415, "POST", by_link, None, {}),
        "JSON as text": (415, "POST", "/graphql", document("x"), {"Content-Type": "text/plain"}),
        "JSON named after another type": (
            415, "POST", "/graphql", document("x"), {"Content-Type": "text/plain; application/json"},
        ),
        "GraphQL": (415, "POST", "/graphql", MUTATION % "x", {"Content-Type": "application/graphql"}),
        "another origin": (403, "POST", "/graphql", document("x"), {**JSON, "Origin": "https://evil.example"}),
        "a null origin": (403, "POST", "/graphql", document("x"), {**JSON, "Origin": "null"}),
        "another port": (403, "POST", "/graphql", document("x"), {**JSON, "Origin": "http://127.0.0.1:1"}),
        "another site": (403, "POST", "/graphql", document("x"), {**JSON, "Sec-Fetch-Site": "cross-site"}),
        "another port of this host": (403, "POST", "/graphql", document("x"), {**JSON, "Sec-Fetch-Site": "same-site"}),
        "a form that a person sends": (
            403, "POST", "/graphql", document("x"), {**JSON, "Sec-Fetch-Site": "cross-site", **NAVIGATION},
        ),
        "another host name": (400, "POST", "/graphql", document("x"), {**JSON, "Host": "evil.example"}),
        "a name with our prefix": (400, "POST", "/graphql", document("x"), {**JSON, "Host": "localhost.evil.example"}),
        "an asset": (415, "POST", "/report_asset_materialization/a", None, {}),
    }  # fmt: skip
    for name, (status, method, path, body, headers) in refused.items():
        actual, text = served.ask(path, method=method, body=body, **headers)
        assert (actual, text.count("\n")) == (status, 1), (name, text)
    assert served.limits() == set()
    accepted: dict[str, Headers] = {
        "program": {},
        "page": {"Origin": own, "Sec-Fetch-Site": "same-origin"},
        "proxied": {"Host": "dagster.example.org", "Origin": "https://dagster.example.org"},
        "typed": {"Host": f"LOCALHOST:{served.port}", "Content-Type": "application/json; charset=utf-8"},
    }
    for name, headers in accepted.items():
        assert served.ask("/graphql", method="POST", body=document(name), **{**JSON, **headers})[0] == 200, name
    assert served.limits() == set(accepted)


def test_a_page_of_another_site_may_link_to_the_ui_but_not_embed_it(served: Served) -> None:
    elsewhere = {"Sec-Fetch-Site": "cross-site"}
    shown: dict[str, tuple[int, Headers]] = {
        "typed": (200, {"Sec-Fetch-Site": "none", **NAVIGATION}),
        "followed": (200, {**elsewhere, **NAVIGATION}),
        "in a frame": (403, {**elsewhere, **NAVIGATION, "Sec-Fetch-Dest": "iframe"}),
        "fetched": (403, {**elsewhere, "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"}),
        "requested by a script": (403, {"Origin": "https://evil.example"}),
        "another host name": (400, {"Host": "evil.example"}),
        "a malformed host": (400, {"Host": "localhost@evil.example"}),
        "a probe of an orchestrator": (200, {"Host": "10.0.0.7:3000"}),
        "a probe over IPv6": (200, {"Host": "[fd00::7]:3000"}),
    }
    for name, (status, headers) in shown.items():
        assert served.ask("/runs", **headers)[0] == status, name


def test_a_websocket_is_opened_only_for_pages_of_the_ui_and_refuses_mutations(served: Served) -> None:
    before = served.limits()
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": f"http://{served.host}", "Sec-Fetch-Site": "cross-site"},
        {"Origin": f"http://{served.host}", "Sec-Fetch-Site": "cross-site", **NAVIGATION},
    ):
        with pytest.raises(InvalidStatus) as refused:
            served.subscribe(MUTATION % "x", **headers)
        assert refused.value.response.status_code == 403, headers
    assert served.subscribe(MUTATION % "x", Origin=f"http://{served.host}")["type"] == "error"
    assert served.limits() == before


def test_a_wrong_setting_gives_a_one_line_error(tmp_path: Path) -> None:
    wrong = {"DAGSTER_HOME": str(tmp_path), "KFM_ALLOWED_HOSTS": "https://dagster.example.org"}
    done = run_program(*WEB_SERVER, **wrong)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "KFM_ALLOWED_HOSTS" in done.stderr


def test_every_shipped_deployment_starts_this_web_server() -> None:
    deploy = Path(__file__).resolve().parents[2] / "deploy"
    compose = yaml.safe_load((deploy / "compose" / "compose.yaml").read_text(encoding="utf-8"))["services"]["webserver"]
    task = yaml.safe_load((deploy / "ecs" / "task-definition.yaml").read_text(encoding="utf-8"))
    [ecs] = [container for container in task["containerDefinitions"] if container["name"] == "webserver"]
    for service in (compose, ecs):
        assert service["command"][:3] == ["python", "-m", "kfm_dagster.defs.web_server"]
    # Dagster's chart starts `dagster-webserver`, which is this script in our image.
    script = (deploy / "image" / "dagster-webserver").read_text(encoding="utf-8")
    assert script.splitlines()[1:] == ['exec /opt/kfm/bin/python -m kfm_dagster.defs.web_server "$@"']
    installed = "RUN install --mode=0755 deploy/image/dagster-webserver /opt/kfm/bin/dagster-webserver"
    assert installed in (deploy / "image" / "Dockerfile").read_text(encoding="utf-8").splitlines()
