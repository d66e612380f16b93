"""A Hugging Face Hub on this machine, to which the real `huggingface_hub` client pushes and from which it pulls.

No kept package offers one: `hf-local-hub` on PyPI comes without its server, and mirrors only read. This one speaks of
the Hub's protocol, for models, what our tests ask for: whoami-v2, creating repositories and branches, model info,
commits, tree, preupload, LFS (batch, basic transfer, verify), commits, also as pull requests, resolve (HEAD, GET, a
signed link to another host for large files), private repositories, and validate-yaml. It does not speak xet or
multipart transfer, and knows no datasets, spaces, organizations or gates.

A test module that says `pytest_plugins = ["hub_server"]` has the fixture `hub`. The process of the test then talks to
the server; a process of its own does so with `env=hub.environment(...)`, and is the place for code that comes with a
model, because transformers remembers for good which modules it has imported.
"""

import base64
import hashlib
import importlib
import json
import os
import re
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import huggingface_hub
import pytest
from hub_metadata import metadata_errors
from hub_repository import ANN, TOKENS, Commit, File, Refusal, Repository


class Reply(NamedTuple):
    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = {}


def as_json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Reply:
    return Reply(json.dumps(value).encode(), status, {"Content-Type": "application/json"} | (headers or {}))


ROUTES: list[tuple[str, re.Pattern[str], Callable[..., Reply]]] = []


def route(methods: str, path: str) -> Callable[[Callable[..., Reply]], Callable[..., Reply]]:
    """Have a method answer these requests; {names} in the path are its arguments."""
    slashes = path.replace("{repo}", "(?P<repo>[^/]+/[^/]+?)").replace("{path}", "(?P<path>.+)")
    pattern = re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", slashes))

    def register(function: Callable[..., Reply]) -> Callable[..., Reply]:
        ROUTES.extend((method, pattern, function) for method in methods.split())
        return function

    return register


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "HubServer"

    def log_message(self, *args: Any) -> None:
        pass

    def answer(self) -> None:
        url, length = urlsplit(self.path), int(self.headers.get("Content-Length", 0))
        self.query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        if self.server.cuts(f"{self.command} {url.path}"):
            self.rfile.read(min(length, 1000))
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        self.body = self.rfile.read(length)
        try:
            reply = self.dispatch(url.path)
        except Refusal as no:
            headers = {"X-Error-Message": no.message, "X-Error-Code": no.code}
            reply = as_json({"error": no.message, **no.details}, no.status, {k: v for k, v in headers.items() if v})
        if self.server.lost and re.match(self.server.lost, f"{self.command} {url.path}"):
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        self.send_response(reply.status)
        for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer  # noqa: N815 - what the base class calls

    def dispatch(self, path: str) -> Reply:
        for method, pattern, function in ROUTES:
            if method == self.command and (match := pattern.fullmatch(path)):
                return function(self, **{name: unquote(value) for name, value in match.groupdict().items()})
        raise Refusal(404, f"this server does not know {self.command} {path}")

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def user(self) -> str | None:
        if (header := self.headers.get("Authorization")) is None:
            return None
        if (token := header.removeprefix("Bearer ")) not in TOKENS:
            raise Refusal(401, "Invalid credentials in Authorization header")
        return TOKENS[token]

    def check_owner(self, owner: str | None) -> None:
        if self.user is None:
            raise Refusal(401, "Invalid username or password.")
        if self.user != owner:
            raise Refusal(403, f"You don't have the rights to write under the namespace {owner}")

    def repository(self, name: str, write: bool = False) -> Repository:
        user, repository = self.user, self.server.repositories.get(name)
        if repository is None or (repository.private and user != repository.owner):
            raise Refusal(404 if user else 401, "Repository not found", "RepoNotFound")
        if write:
            self.check_owner(repository.owner)
        return repository

    @route("GET", "/api/whoami-v2")
    def whoami(self) -> Reply:
        self.check_owner(self.user)
        return as_json({"type": "user", "name": self.user, "fullname": self.user, "orgs": []})

    @route("POST", "/api/validate-yaml")
    def validate_yaml(self) -> Reply:
        errors, warnings = metadata_errors(self.json["content"])
        answer = {"errors": [{"message": e} for e in errors], "warnings": [{"message": w} for w in warnings]}
        return as_json(answer, 400 if errors else 200)

    @route("POST", "/api/repos/create")
    def create(self) -> Reply:
        owner = self.json["organization"] or self.user
        self.check_owner(owner)
        name = f"{owner}/{self.json['name']}"
        if name in self.server.repositories:
            raise Refusal(409, "You already created this model repo", url=f"{self.server.url}/{name}")
        # older clients say the first, newer ones the second
        private = self.json.get("private") or self.json.get("visibility") == "private"
        self.server.repositories[name] = Repository(name, private)
        return as_json({"url": f"{self.server.url}/{name}"})

    @route("GET", "/api/models/{repo}")
    @route("GET", "/api/models/{repo}/revision/{revision}")
    def info(self, repo: str, revision: str = "main") -> Reply:
        return as_json(self.repository(repo).info(revision))

    @route("GET", "/api/models/{repo}/commits/{revision}")
    def commits(self, repo: str, revision: str) -> Reply:
        return as_json(self.repository(repo).history(revision))

    @route("POST", "/api/models/{repo}/branch/{name}")
    def branch(self, repo: str, name: str) -> Reply:
        repository = self.repository(repo, write=True)
        if f"refs/heads/{name}" in repository.refs:
            raise Refusal(409, f"{name} already exists")
        repository.refs[f"refs/heads/{name}"] = repository.commit(self.json.get("startingPoint", "main")).oid
        return Reply()

    @route("GET", "/api/models/{repo}/tree/{revision}")
    @route("GET", "/api/models/{repo}/tree/{revision}/{path}")
    def tree(self, repo: str, revision: str, path: str = ".") -> Reply:
        entries = self.repository(repo).entries(revision)
        if path != "." and path not in entries:
            raise Refusal(404, f"{path} does not exist on {revision}", "EntryNotFound")
        recursive = self.query.get("recursive", "").lower() == "true"
        # the root has whatever there is, though a path be absolute
        parents = {p: [*map(str, PurePosixPath(p).parents), "."] for p in entries}
        return as_json([entries[p] for p in entries if path in (parents[p] if recursive else parents[p][:1])])

    @route("POST", "/api/models/{repo}/preupload/{revision}")
    def preupload(self, repo: str, revision: str) -> Reply:
        repository = self.repository(repo, write="create_pr" not in self.query)
        return as_json({"files": [repository.preupload(f["path"], f["size"], revision) for f in self.json["files"]]})

    @route("POST", "/{repo}.git/info/lfs/objects/batch")
    def lfs_batch(self, repo: str) -> Reply:
        # without a revision, the files are for a pull request, which every reader may make
        self.repository(repo, write="ref" in self.json)
        objects = [{"oid": asked["oid"], "size": asked["size"]} for asked in self.json["objects"]]
        for entry in objects:
            if entry["oid"] not in self.server.storage:
                upload = {"href": self.server.storage_url(entry["oid"])}
                entry["actions"] = {
                    "upload": upload,
                    "verify": {"href": f"{self.server.url}/{repo}.git/info/lfs/verify"},
                }
        return as_json({"transfer": "basic", "objects": objects})

    @route("POST", "/{repo}.git/info/lfs/verify")
    def lfs_verify(self, repo: str) -> Reply:
        self.repository(repo)
        if len(self.server.storage.get(self.json["oid"], b"")) != self.json["size"]:
            raise Refusal(400, "the object is missing or of another size")
        return Reply()

    @route("GET HEAD PUT", "/storage/{signature}/{oid}")
    def stored_object(self, signature: str, oid: str) -> Reply:
        if signature != self.server.signature or "Authorization" in self.headers:
            raise Refusal(403, "the storage wants a signed link, and no token of the Hub")
        if self.command != "PUT":
            return Reply(self.server.storage[oid], headers={"ETag": f'"{oid}"'})
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise Refusal(400, "the content has another SHA-256")
        self.server.storage[oid] = self.body
        return Reply()

    @route("POST", "/api/models/{repo}/commit/{revision}")
    def commit(self, repo: str, revision: str) -> Reply:
        as_pull_request = "create_pr" in self.query
        repository = self.repository(repo, write=not as_pull_request)
        header, *operations = [json.loads(line) for line in self.body.splitlines()]
        about, parent = header["value"], repository.commit(revision)
        commit = Commit(about["summary"], about["description"], dict(parent.files), parent.oid)
        for operation in operations:
            self.apply(operation["key"], operation["value"], commit.files)
        number = sum(ref.startswith("refs/pr/") for ref in repository.refs) + 1
        repository.commits[commit.oid] = commit
        repository.refs[f"refs/pr/{number}" if as_pull_request else f"refs/heads/{revision}"] = commit.oid
        url = f"{self.server.url}/{repo}"
        answer = {"success": True, "commitOid": commit.oid, "commitUrl": f"{url}/commit/{commit.oid}"}
        return as_json(answer | ({"pullRequestUrl": f"{url}/discussions/{number}"} if as_pull_request else {}))

    def apply(self, kind: str, value: dict[str, Any], files: dict[str, File]) -> None:
        path = value["path"]
        if kind == "file":
            files[path] = File(base64.b64decode(value["content"]))
        elif kind == "lfsFile":
            if value["oid"] not in self.server.storage:
                raise Refusal(400, "Your push was rejected because an LFS pointer points to a file that does not exist")
            files[path] = File(self.server.storage[value["oid"]], lfs=True)
        elif kind == "deletedFile" and path in files:
            del files[path]
        else:
            raise Refusal(400, f"{kind} {path} cannot be done")

    @route("GET HEAD", "/{repo}/resolve/{revision}/{path}")
    def resolve(self, repo: str, revision: str, path: str) -> Reply:
        repository = self.repository(repo)
        commit = {"X-Repo-Commit": repository.commit(revision).oid}
        if (file := repository.files(revision).get(path)) is None:
            return Reply(b"", 404, commit | {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"})
        if not file.lfs:
            return Reply(file.content, headers=commit | {"ETag": f'"{file.oid}"'})
        linked = {"X-Linked-Etag": f'"{file.sha256}"', "X-Linked-Size": str(len(file.content))}
        return Reply(b"", 302, commit | linked | {"Location": self.server.storage_url(file.sha256)})


class HubServer(ThreadingHTTPServer):
    """The server, which runs as long as its `with` block.

    `repositories` may be read and written by tests, and `requests` tells what was asked.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.repositories: dict[str, Repository] = {}
        self.storage: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.signature = secrets.token_hex(8)
        self.fault: tuple[str, int] | None = None
        self.lost: str | None = None

    def __enter__(self) -> "HubServer":
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.shutdown()
        self.server_close()

    def storage_url(self, oid: str) -> str:
        # another name of this host: the Hub keeps large files elsewhere, where no token may be sent to
        return f"http://localhost:{self.server_port}/storage/{self.signature}/{oid}"

    def cut(self, request: str, after: int = 0) -> None:
        """Break the connections of requests like `PUT /storage/.*` in the middle, once so many came through."""
        self.fault = (request, after)

    def lose(self, request: str) -> None:
        """Do what requests like `POST .*/commit/.*` ask for, and break the connection before the answer."""
        self.lost = request

    def repair(self) -> None:
        self.fault = self.lost = None

    def cuts(self, request: str) -> bool:
        self.requests.append(request)
        if self.fault is None or not re.match(self.fault[0], request):
            return False
        self.fault = (self.fault[0], self.fault[1] - 1)
        return self.fault[1] < 0

    def environment(self, home: Path, token: str = "") -> dict[str, str]:
        """Variables for a process that has its cache in `home` and the token of somebody, or none."""
        ours = {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(home),
            "HF_TOKEN": token,
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "NO_PROXY": "127.0.0.1,localhost",
        }
        # these would have the last word
        overruling = {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_MODULES_CACHE", "HF_TOKEN_PATH"}
        overruling |= {"TRANSFORMERS_OFFLINE"}
        return {name: value for name, value in os.environ.items() if name not in overruling} | ours


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A new server, with which this process talks from an empty cache, as ann."""
    with HubServer() as server:
        environment = server.environment(tmp_path / "huggingface", token=ANN)
        for name in os.environ.keys() - environment.keys():
            monkeypatch.delenv(name)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        # the client reads its variables when it is imported, and transformers keeps the client
        importlib.reload(huggingface_hub.constants)
        monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", server.url)
        monkeypatch.setattr("transformers.utils.hub._hf_api", None)
        yield server
        monkeypatch.undo()
        importlib.reload(huggingface_hub.constants)
