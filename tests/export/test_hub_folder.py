"""The folder for the hub, and its upload to a server that answers as the hub does."""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

from orchestra_flwr import extras, load_encoder
from orchestra_flwr.cli import export_main
from orchestra_flwr.export import hub_folder
from orchestra_flwr.fingerprints import file_sha256
from orchestra_flwr.models import save_encoder


@pytest.fixture
def command(capfd):
    def call(*arguments):
        code = export_main(["format=hub", *arguments])
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return call


def exported_before(run):
    """As `orchestra-export` leaves it."""
    (run / "export").mkdir()
    (run / "export" / "encoder.onnx").write_bytes(b"made before")
    made_from = {"encoder.onnx": file_sha256(run / "encoder.safetensors")}
    (run / "export" / "export.json").write_text(json.dumps({"made_from": made_from}))


def test_the_folder_holds_card_and_encoder_and_nothing_else_of_the_run(make_run, command):
    run = make_run()
    (run / "metrics.jsonl").write_text("{}\n")
    exported_before(run)
    code, out, err = command(f"run={run}", "license=mit")
    assert (code, err, out.strip()) == (0, "", str(run / "hub"))
    files = {str(p.relative_to(run / "hub")) for p in (run / "hub").rglob("*") if p.is_file()}
    assert files == {"README.md", "encoder.safetensors", "encoder.json"} | {
        "onnx/encoder.onnx",
        "onnx/export.json",
    }
    assert "license: mit" in (run / "hub" / "README.md").read_text()
    images = torch.randint(0, 256, (3, 1, 8, 8), dtype=torch.uint8)
    assert torch.equal(load_encoder(run / "hub")(images), load_encoder(run)(images))


def test_what_was_exported_of_other_weights_is_not_published(make_run, command):
    run = make_run()
    exported_before(run)
    assert command(f"run={run}")[0] == 0
    encoder = load_encoder(run)
    with torch.no_grad():
        next(encoder.parameters()).add_(1)
    save_encoder(run / "encoder.safetensors", encoder, method="orchestra")
    code, _, err = command(f"run={run}")
    assert code == 2 and "encoder.onnx was exported from another encoder than" in err
    (run / "export" / "encoder.onnx").unlink()
    assert command(f"run={run}")[0] == 0
    assert list((run / "hub" / "onnx").iterdir()) == []


def test_a_damaged_summary_is_one_line(make_run, command):
    run = make_run()
    (run / "summary.json").write_text('{"knn": ')
    code, _, err = command(f"run={run}")
    assert code == 1 and err.startswith(f"error: {run}/summary.json: no JSON")
    assert err.count("\n") == 1 and not (run / "hub").exists()


class _Hub(BaseHTTPRequestHandler):
    """The requests of an upload, answered; what is committed lies in `folder`."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.server.asked.append((self.path, self.headers.get("Authorization")))
        if self.server.refuse:
            self.answer({"error": "not yours"}, 403)
        elif self.path == "/api/repos/create":
            self.server.made.append(json.loads(body))
            self.answer({"url": f"{self.server.address}/me/digits", "id": "me/digits"})
        elif "/preupload/" in self.path:
            wanted = json.loads(body)["files"]
            modes = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in wanted
            ]
            self.answer({"files": modes, "commitOid": "0" * 40})
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    path = self.server.folder / line["value"]["path"]
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(base64.b64decode(line["value"]["content"]))
            url = f"{self.server.address}/me/digits/commit/{'1' * 40}"
            self.answer({"commitUrl": url, "commitOid": "1" * 40})
        else:  # validation of the card
            self.answer({"errors": [], "warnings": []})

    def do_GET(self):
        self.answer({"id": "me/digits", "sha": "0" * 40, "siblings": []})

    def answer(self, values, status=200):
        content = json.dumps(values).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A server on this machine; huggingface_hub believes that it is the hub."""
    pytest.importorskip("huggingface_hub", reason="needs the extra huggingface")
    from huggingface_hub import constants

    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    server.folder, server.asked, server.made, server.refuse = tmp_path / "hub", [], [], False
    server.address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_test")
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_what_is_pushed_is_loaded_from_the_hub(make_run, command, hub):
    run = make_run()
    code, out, err = command(f"run={run}", "push_to_hub=me/digits")
    assert code == 0, err
    assert out.strip().splitlines()[-1].startswith(f"{hub.address}/me/digits")
    assert hub.made[0]["name"] == "digits"
    # Releases of the library say it in one way or the other.
    assert hub.made[0].get("private") is True or hub.made[0].get("visibility") == "private"
    assert {token for _, token in hub.asked} == {"Bearer hf_of_the_test"}
    assert 'snapshot_download("me/digits")' in (hub.folder / "README.md").read_text()
    images = torch.randint(0, 256, (3, 1, 8, 8), dtype=torch.uint8)
    assert torch.equal(load_encoder(hub.folder)(images), load_encoder(run)(images))


def test_nothing_is_uploaded_but_what_was_written(make_run, command, hub):
    run = make_run()
    exported_before(run)
    for hidden in (".notes", "onnx/.notes"):
        (run / "hub" / hidden).parent.mkdir(parents=True, exist_ok=True)
        (run / "hub" / hidden).write_text("private")
    assert command(f"run={run}", "push_to_hub=me/digits")[0] == 0
    pushed = {p.relative_to(hub.folder).as_posix() for p in hub.folder.rglob("*") if p.is_file()}
    assert pushed == {"README.md", "encoder.safetensors", "encoder.json"} | {
        "onnx/encoder.onnx",
        "onnx/export.json",
    }


@pytest.mark.parametrize("other", ["config.yaml", "checkpoint/state.json", "onnx/photo.png"])
def test_a_folder_with_other_files_is_refused(make_run, command, hub, other):
    run = make_run()
    folder = run.parent / "published"
    (folder / other).parent.mkdir(parents=True)
    (folder / other).write_text("private")
    code, out, err = command(f"run={run}", f"folder={folder}", "push_to_hub=me/digits")
    assert (code, out) == (2, "") and err.count("\n") == 1
    name = other.split("/")[0] if "onnx" not in other else "photo.png"
    assert err.startswith(f"error: folder={folder}: holds {name}, which is not of format=hub; must")
    assert [p for p in folder.rglob("*") if p.is_file()] == [folder / other]
    assert hub.asked == []


def test_a_hub_that_refuses_is_one_line_and_the_folder_is_there(make_run, command, hub):
    hub.refuse = True
    run = make_run()
    code, out, err = command(f"run={run}", "push_to_hub=me/digits")
    assert (code, out) == (1, "") and err.count("\n") == 1
    assert err.startswith("error: push_to_hub=me/digits: ") and "403" in err
    assert (run / "hub" / "README.md").is_file()


def test_a_hub_that_cannot_be_reached_is_one_line(make_run, command, monkeypatch):
    huggingface_hub = pytest.importorskip("huggingface_hub")

    class ConnectError(Exception):  # of an HTTP client that is not httpx: releases choose another
        pass

    def unreachable(*_, **__):
        raise ConnectError("Name or service not known")

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", unreachable)
    code, out, err = command(f"run={make_run()}", "push_to_hub=me/digits")
    assert (code, out) == (1, "")
    assert err == "error: push_to_hub=me/digits: Name or service not known\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["push_to_hub=digits"], "push_to_hub=digits: must be owner/name"),
        (["format=onnx", "push_to_hub=me/digits"], "push_to_hub=me/digits: needs format=hub"),
    ],
)
def test_a_wrong_name_is_refused_before_anything_is_written(make_run, command, arguments, says):
    run = make_run()
    code, out, err = command(f"run={run}", *arguments)
    assert (code, out) == (2, "") and says in err
    assert not (run / "hub").exists()


def test_who_stops_an_upload_is_not_told_that_nothing_was_written(make_run, command, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    run = make_run()
    monkeypatch.setattr(hub_folder, "push", stopped)
    monkeypatch.setattr(hub_folder, "require", lambda *_: None)
    code, _, err = command(f"run={run}", "push_to_hub=me/photos")
    assert (code, err) == (130, "stopped; the same command starts over\n")
    assert (run / "hub" / "encoder.safetensors").is_file()


def test_without_the_library_one_line_says_what_to_install(make_run, command, monkeypatch):
    there = extras.find_spec
    monkeypatch.setattr(
        extras, "find_spec", lambda name: None if name == "huggingface_hub" else there(name)
    )
    code, _, err = command(f"run={make_run()}", "push_to_hub=me/digits")
    assert code == 2
    assert err == (
        "error: push_to_hub: huggingface_hub is not installed; "
        "pip install 'orchestra-flwr[huggingface]'\n"
    )
