"""Against a server of our own on this machine: no test reaches the network."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from blocklab.data.corpora import read_corpus
from blocklab.data.fetching import fetch, kept_name
from blocklab.errors import BlocklabError


class _Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if self.path == "/missing":
            self.send_error(404)
            return
        body = b'{"text": "fetched"}\n'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body) + (100 if self.path == "/cut" else 0)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as server:
        server.asked = []
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_url_is_fetched_once_and_read_by_its_ending(
    server: ThreadingHTTPServer, tmp_path: Path
) -> None:
    for _ in range(2):
        corpus = read_corpus(f"{server.url}/a/data.jsonl?x=1", cache=tmp_path)
        assert [text for _, text in corpus.documents()] == ["fetched"]
    assert server.asked == ["/a/data.jsonl?x=1"]
    assert any("fetched once" in note for note in corpus.notes)


def test_a_refusal_a_break_and_no_server_are_told_apart_and_leave_nothing(
    server: ThreadingHTTPServer, tmp_path: Path
) -> None:
    target = tmp_path / "folder" / "file"
    with pytest.raises(BlocklabError, match="/missing: the server answered 404"):
        fetch(f"{server.url}/missing", target)
    with pytest.raises(BlocklabError, match="/cut: broke off"):
        fetch(f"{server.url}/cut", target)
    with pytest.raises(BlocklabError, match="could not be fetched"):
        fetch("http://127.0.0.1:1/none", target)
    assert not target.exists()
    assert list(tmp_path.rglob("*")) in ([], [target.parent])


def test_kept_names_are_readable_unique_and_keep_the_ending() -> None:
    one, two = kept_name("https://a.org/x/data.jsonl?v=1"), kept_name("https://a.org/data.jsonl")
    assert one != two
    assert one.endswith("-data.jsonl") and two.endswith("-data.jsonl")
    assert "/" not in kept_name("https://a.org/%2F..%5C/") and kept_name("https://a.org")
