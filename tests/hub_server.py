"""A stand-in of the Hugging Face hub's HTTP interface, as huggingface_hub 2.4 calls it."""

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import pytest

TOKEN, READER = "hf_writes", "hf_reads"
_ROUTE = re.compile(
    r"/api/(models|datasets)/([^/]+/[^/]+?)(?:/(revision|tree|preupload|commit|auth-check)/?(.*))?"
)
_FILE = re.compile(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


class Repository:
    """Files of a repository, whose commit is a hash of them."""

    def __init__(self, files=(), private=False, gated=False):
        self.files, self.private, self.gated = dict(files), private, gated

    @property
    def sha(self):
        return hashlib.sha1(repr(sorted(self.files.items())).encode()).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Answers for `server.hub`: (kind, name) -> repository, and `server.asked`."""

    def log_message(self, *_):
        pass

    def answer(self, content, status=200, **headers):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status, code="", message="refused", **more):
        self.answer({"error": message, **more}, status, X_Error_Code=code, X_Error_Message=message)

    def found(self, kind, name):
        """The repository, where it is there and may be seen."""
        repository = self.server.hub.get((kind, name))
        if repository is None or (repository.private and not self.token):
            self.refuse(404 if self.token else 401, "RepoNotFound", "Repository not found")
            return None
        return repository

    def handle_request(self):
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append(f"{self.command} {path}")
        self.token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        size = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(size)
        if self.token not in ("", TOKEN, READER):
            return self.refuse(401, message="Invalid credentials in Authorization header")
        if path == "/api/whoami-v2":
            return self.answer({"name": "me"}) if self.token else self.refuse(401)
        if path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if path == "/api/repos/create":
            return self.create(json.loads(self.body))
        if file := _FILE.fullmatch(path):
            return self.resolve("datasets" if file[1] else "models", *file.groups()[1:])
        route = _ROUTE.fullmatch(path)
        repository = route and self.found(route[1], route[2])
        if repository:
            getattr(self, (route[3] or "revision").replace("-", "_"))(repository, route[4])
        elif not route:
            self.refuse(404)

    do_GET = do_HEAD = do_POST = handle_request  # noqa: N815

    def create(self, wanted):
        owner = wanted.get("organization") or "me"
        key = ("models", f"{owner}/{wanted['name']}")
        address = f"{self.server.address}/{key[1]}"
        if key in self.server.hub:
            return self.refuse(409, message="You already created this model repo", url=address)
        if self.token != TOKEN or owner != "me":
            return self.refuse(403, message="You don't have the rights")
        self.server.hub[key] = Repository(private=wanted.get("visibility") == "private")
        return self.answer({"url": address})

    def revision(self, repository, revision):
        if revision not in ("", None, "main", repository.sha):
            return self.refuse(404, "RevisionNotFound", "Invalid rev id")
        facts = {"id": "x/y", "sha": repository.sha, "private": repository.private}
        facts |= {"siblings": [{"rfilename": name} for name in repository.files], "tags": []}
        return self.answer(facts | {"downloads": 0, "likes": 0, "gated": repository.gated})

    def tree(self, repository, _):
        listed = [
            {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
            for name, data in repository.files.items()
        ]
        self.answer(listed)

    def resolve(self, kind, name, _, file):
        repository = self.found(kind, name)
        if repository is None:
            return
        if repository.gated and not self.token:
            self.refuse(401, "GatedRepo", "Access to it is restricted")
        elif file not in repository.files:
            self.refuse(404, "EntryNotFound", "Entry not found")
        else:
            data = repository.files[file]
            etag = f'"{hashlib.sha1(data).hexdigest()}"'
            self.answer(data, ETag=etag, X_Repo_Commit=repository.sha)

    def auth_check(self, _, what):
        right = self.token == TOKEN or (what != "write" and self.token)
        return self.answer({}) if right else self.refuse(403, message="Forbidden")

    def preupload(self, _, __):
        names = [file["path"] for file in json.loads(self.body)["files"]]
        files = [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]
        self.answer({"files": files})

    def commit(self, repository, _):
        if self.token != TOKEN or self.server.vanish:
            return self.refuse(413 if self.server.vanish else 403, message="Forbidden")
        for line in map(json.loads, self.body.splitlines()):
            if line["key"] == "file":
                repository.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        address = f"{self.server.address}/me/x/commit/{repository.sha}"
        return self.answer({"commitUrl": address, "commitOid": repository.sha})


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """The stand-in, which huggingface_hub asks with an empty cache and no token."""
    from huggingface_hub import constants, whoami

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.hub, server.asked, server.vanish = {}, [], False
    server.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    template = server.address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub_cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no_token"))
    monkeypatch.setattr(whoami.__self__, "endpoint", server.address)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    yield server
    server.shutdown()
