"""Who may ask, by which socket: tokens, hosts, origins, sessions, limits."""

import json
import re
import stat
from urllib.parse import urlencode

import pytest

from genesis_fp16.daemon.control import SOCKET_NAME
from tests.genesis_fp16.api.conftest import TOKEN

pytestmark = pytest.mark.process
BEARER = {"Authorization": f"Bearer {TOKEN}"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def endpoints(api) -> list[tuple[str, str]]:
    """Method and path of every endpoint of the document, with values for its parameters."""
    values = {"name": "se-darwin", "run_id": "20260101T000000-00000000", "number": "1"}
    document = api.get("/openapi.json")
    endpoints_of_api = [
        (method.upper(), re.sub(r"{(\w+)}", lambda match: values[match[1]], path))
        for path, methods in document["paths"].items()
        for method in methods
    ]
    assert len(endpoints_of_api) > 15
    return [*endpoints_of_api, ("GET", "/openapi.json"), ("POST", "/sign-out"), ("GET", "/")]


def test_only_its_owner_may_open_the_socket(api) -> None:
    mode = (api.home / SOCKET_NAME).stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


def test_no_endpoint_answers_without_a_token(api, endpoints) -> None:
    for method, path in endpoints:
        answer = api.ask(method, path, {} if method == "POST" else None, tcp=True)
        assert answer.status == 401, (method, path, answer.body)
        assert answer.headers["www-authenticate"].startswith("Bearer")


def test_no_endpoint_answers_a_token_in_the_url(api, endpoints) -> None:
    """Under any name, encoded or as a part of the path, also beside a right header."""
    for method, path in endpoints:
        places = (f"{path}?token={TOKEN}", f"{path}?x={TOKEN.replace('-', '%2D')}")
        for place in (*places, f"/{TOKEN}{path}", f"{path}?access_token=anything"):
            body = {} if method == "POST" else None
            answer = api.ask(method, place, body, tcp=True, headers=BEARER)
            assert answer.status == 400, (method, place, answer.body)
            assert "into a URL" in answer.json()["detail"]
            assert TOKEN not in json.dumps(answer.json())


@pytest.mark.parametrize("tcp", [True, False])
def test_no_endpoint_answers_another_host_or_origin(api, endpoints, tcp: bool) -> None:
    """A page of another site, or one whose name leads to this address."""
    for method, path in endpoints:
        body = {} if method == "POST" else None
        for headers, status in (
            ({"Host": "evil.example"}, 421),
            ({"Host": "localhost.evil.example:80"}, 421),
            ({"Origin": "https://evil.example"}, 403),
            ({"Origin": "null"}, 403),
            ({"Sec-Fetch-Site": "cross-site"}, 403),
        ):
            answer = api.ask(method, path, body, tcp=tcp, headers=BEARER | headers)
            assert answer.status == status, (method, path, headers, answer.body)


def test_the_token_opens_tcp(api) -> None:
    answer = api.ask("GET", "/api/health", tcp=True, headers=BEARER)
    assert answer.status == 200
    origin = {"Origin": f"http://127.0.0.1:{api.port}"}
    assert api.ask("GET", "/api/health", tcp=True, headers=BEARER | origin).status == 200


def test_a_token_with_a_lower_role_looks_and_changes_nothing(serve_api, tmp_path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"ann {TOKEN}-ann read\nbob {TOKEN}-bob ask\ncleo {TOKEN}-cleo operate\n")
    api = serve_api(api_token=None, api_token_file=tokens)
    body = {"reason": "test", "agent": "se-darwin"}
    for name in ("ann", "bob", "cleo"):
        bearer = {"Authorization": f"Bearer {TOKEN}-{name}"}
        assert api.ask("GET", "/api/health", tcp=True, headers=bearer).status == 200
        answer = api.ask("POST", "/api/agents/se-darwin/pause", body, tcp=True, headers=bearer)
        assert (answer.status == 403) == (name != "cleo"), answer.body
        assert name == "cleo" or "operate" in answer.json()["detail"]


def test_a_browser_signs_in_and_out(api) -> None:
    def post(path: str, fields: dict[str, str], **headers: str):
        return api.ask("POST", path, urlencode(fields), tcp=True, headers=FORM | headers)

    answer = post("/sign-in", {"token": TOKEN})
    assert (answer.status, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert TOKEN not in cookie
    session = {"Cookie": cookie.partition(";")[0]}
    assert api.ask("GET", "/api/health", tcp=True, headers=session).status == 200
    change = {"reason": "a click on another site", "precision": "fp32"}
    refused = api.ask("POST", "/api/precision/set", change, tcp=True, headers=session)
    assert refused.status == 403, "a change needs the session's own proof"
    wrong = session | {"X-CSRF-Token": "x" * 43}
    assert api.ask("POST", "/api/precision/set", change, tcp=True, headers=wrong).status == 403
    assert post("/sign-out", {}, **session).status == 403
    assert api.store.overrides.in_force() == []
    caller = api.ask("GET", "/api/caller", tcp=True, headers=session).json()
    proof = session | {"X-CSRF-Token": caller["csrf"]}
    assert api.ask("POST", "/api/precision/set", change, tcp=True, headers=proof).status == 200
    assert api.store.overrides.clear(None, actor="me", reason="done")
    assert [change.actor for change in api.store.overrides.audit(2)] == ["me", "page:token"]
    assert post("/sign-out", {"csrf": caller["csrf"]}, **session).headers["location"] == "/sign-in"
    assert api.ask("GET", "/api/health", tcp=True, headers=session).status == 401


def test_bodies_are_bounded_and_typed(api) -> None:
    path, size = "/api/precision/set", 1 << 17
    assert api.ask("POST", path, "x" * size, tcp=True, headers=BEARER).status == 413
    kind = {"Content-Type": "text/plain"}
    assert api.ask("POST", path, "{}", tcp=True, headers=BEARER | kind).status == 415


def test_answers_may_not_be_framed_kept_or_sniffed(api) -> None:
    headers = api.ask("GET", "/api/health").headers
    assert headers["x-frame-options"] == "DENY"
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert "default-src 'self'" in headers["content-security-policy"]


def test_wrong_tokens_make_their_client_wait(serve_api) -> None:
    api = serve_api()
    wrong = {"Authorization": "Bearer wrong-token-0123456789"}
    statuses = [api.ask("GET", "/api/health", tcp=True, headers=wrong).status for _ in range(5)]
    assert statuses == [401] * 5
    limited = api.ask("GET", "/api/health", tcp=True, headers=BEARER)
    assert limited.status == 429
    assert 0 < int(limited.headers["retry-after"]) <= 61
    form = api.ask("POST", "/sign-in", urlencode({"token": TOKEN}), tcp=True, headers=FORM)
    assert form.headers["location"].startswith("/sign-in?wait=")
    assert api.get("/api/health")["ready"], "the Unix socket does not wait"


def test_nobody_can_try_tokens_in_urls(serve_api) -> None:
    """A token that got into a URL is named as such, but that does not help to find one."""
    api = serve_api()
    assert api.ask("GET", f"/?x={TOKEN}", tcp=True).status == 400
    guesses = [f"/?x=a-wrong-token-{number:016}" for number in range(5)]
    assert [api.ask("GET", guess, tcp=True).status for guess in guesses] == [401] * 5
    assert api.ask("GET", f"/?x={TOKEN}", tcp=True).status == 401
    assert api.ask("GET", "/api/health", tcp=True, headers=BEARER).status == 200
    assert api.ask("GET", f"/api/health?x={TOKEN}", tcp=True, headers=BEARER).status == 400
