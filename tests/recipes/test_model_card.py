"""The model card of a run, and upload and download through the real client and a small hub on this machine."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard, constants

from calligram.errors import UserError
from calligram.models.catalog import run_fingerprint
from calligram.recipes import model_card as sharing
from calligram.recipes.fit import fit
from calligram.recipes.model_card import MeasuredSplit, model_card, pull_run, push_run, write_shared_folder
from calligram.training.runs import Run, load_run

COMMIT = "0" * 40


class HubHandler(BaseHTTPRequestHandler):
    """The requests of the hub that an upload of small files and a download need."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Authorization") != "Bearer hf_test":
            self.answer({"error": "Invalid username or password."}, 401)
        elif self.path == "/api/repos/create":
            self.server.created.append(json.loads(body))
            self.answer({"url": f"{self.server.address}/ann/tiny"})
        elif self.path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            names = [file["path"] for file in json.loads(body)["files"]]
            self.answer({"files": [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]})
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.server.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self.answer({"commitUrl": f"{self.server.address}/ann/tiny/commit/{COMMIT}", "commitOid": COMMIT})
        else:
            self.answer({}, 404)

    def do_GET(self) -> None:
        files = self.server.files
        if self.path.startswith("/api/models/ann/tiny/tree"):
            entries = [{"type": "file", "path": n, "size": len(d), "oid": oid(d)} for n, d in files.items()]
            self.answer(entries)
        elif self.path.startswith("/api/models/ann/tiny"):
            listed = [{"rfilename": name} for name in files]
            self.answer({"id": "ann/tiny", "sha": COMMIT, "siblings": listed, "private": False})
        elif self.path.startswith("/ann/tiny/resolve/") and (name := self.path.split("/", 5)[5]) in files:
            headers = {"ETag": f'"{oid(files[name])}"', "X-Repo-Commit": COMMIT}
            self.send(files[name], 200, headers)
        else:
            self.answer({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})

    def do_HEAD(self) -> None:
        self.do_GET()

    def answer(self, content: object, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send(json.dumps(content).encode(), status, {"Content-Type": "application/json", **(headers or {})})

    def send(self, data: bytes, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def oid(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


@pytest.fixture
def hub(monkeypatch) -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), HubHandler)
    server.files, server.created, server.address = {}, [], f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("card") / "run"
    changes = {"image.size": 16, "image.channels": "4,8"}
    fit("vse", tiny, out=out, epochs=2, batch=4, dim=8, device="cpu", changes=changes)
    about = json.loads((out / "run.json").read_text())
    Run(out).add_entries(settings={**about["settings"], "teachers": "/home/ann/secret/teacher"})
    return out


def test_the_card_has_results_settings_and_valid_metadata(run):
    test = MeasuredSplit("tiny", "test", {"rsum": 300.0, "i2t_r1": 31.25, "other": 1.0})
    card = ModelCard(model_card(Run(run), "ann/tiny", (test,), "mit"))
    best = max((row["dev"] for row in Run(run).metrics() if "dev" in row), key=lambda dev: dev["rsum"])
    found = {(r.dataset_split, r.metric_type): r.metric_value for r in card.data.eval_results}
    assert found["dev", "rsum"] == round(best["rsum"], 2)
    assert found["test", "i2t_r1"] == 31.25
    assert ("test", "other") not in found
    assert (card.data.license, card.data.library_name) == ("mit", "calligram")
    assert "| texts for an image, R@1 |" in card.text
    assert "`image.size=16`" in card.text
    assert "`dim=8`" in card.text
    assert "weight" not in card.text  # settings of the preset itself
    assert "/home" not in str(card)
    assert "calligram pull ann/tiny --out run" in card.text


def test_the_folder_to_upload_gives_the_same_scores_and_names_no_place_of_this_machine(run, tmp_path, tiny):
    write_shared_folder(run, "ann/tiny", tmp_path / "out")
    names = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    expected = {"README.md", "run.json", "matcher.json", "best.safetensors", "checksums.json", "metrics.jsonl"}
    assert names == expected | {"inputs/inputs.json", "inputs/checksums.json"}
    about = Run(tmp_path / "out").about
    assert about["settings"]["teachers"] == "teacher"
    assert not {"command", "collection folder"} & set(about)
    assert run_fingerprint(tmp_path / "out") == run_fingerprint(run)
    texts = tiny.sentences("test").texts.strings[:3]
    (one, inputs), (two, _) = load_run(run), load_run(tmp_path / "out")
    with torch.no_grad():
        vectors = [matcher.encode_texts(*inputs.texts.texts(texts)).vectors for matcher in (one.eval(), two.eval())]
    assert torch.equal(*vectors)
    with pytest.raises(UserError, match="exists; give the name of a new folder"):
        write_shared_folder(run, "ann/tiny", tmp_path / "out")
    with pytest.raises(UserError, match="is not a run"):
        write_shared_folder(tmp_path, "ann/tiny", tmp_path / "other")


def test_a_pushed_run_is_pulled_again(run, tmp_path, hub):
    address = push_run(run, "ann/tiny", private=True, endpoint=hub.address)
    assert address.endswith("/ann/tiny")
    assert hub.created[0]["visibility"] == "private"
    assert hub.files["best.safetensors"] == (run / "best.safetensors").read_bytes()
    hub.files["state/evil.py"] = b"raise SystemExit"
    pulled = pull_run("ann/tiny", tmp_path / "pulled", endpoint=hub.address)
    assert run_fingerprint(pulled) == run_fingerprint(run)
    assert sorted(path.name for path in pulled.iterdir()) == sorted(
        ["README.md", "run.json", "matcher.json", "best.safetensors", "checksums.json", "metrics.jsonl", "inputs"]
    )
    hub.files["best.safetensors"] = hub.files["best.safetensors"][:-4] + b"oops"
    with pytest.raises(UserError, match="damaged"):
        pull_run("ann/tiny", tmp_path / "damaged", endpoint=hub.address)
    del hub.files["best.safetensors"]
    with pytest.raises(UserError, match="'ann/tiny' holds no run of Calligram"):
        pull_run("ann/tiny", tmp_path / "damaged", endpoint=hub.address)
    assert not (tmp_path / "damaged").exists()


def test_the_verbs_push_and_pull(run, tiny, tmp_path, hub, monkeypatch, calligram):
    done = calligram("push", run, "ann/tiny", "--test", tiny.folder, "--license", "mit", "--out", tmp_path / "shown")
    assert "holds what would be uploaded" in done.stdout, done.stderr
    assert "| tiny, test |" in (tmp_path / "shown" / "README.md").read_text()
    assert not hub.created
    for function in (push_run, pull_run):  # the client reads the address of the hub when it is imported
        monkeypatch.setattr(sharing, function.__name__, partial(function, endpoint=hub.address))
    done = calligram("push", run, "ann/tiny", "--license", "mit")
    assert f"uploaded: {hub.address}/ann/tiny" in done.stdout, done.stderr
    done = calligram("pull", "ann/tiny", "--out", tmp_path / "pulled")
    assert f"the run is in {tmp_path / 'pulled'}" in done.stdout, done.stderr
    assert run_fingerprint(tmp_path / "pulled") == run_fingerprint(run)
    again = calligram("pull", "ann/tiny", "--out", tmp_path / "pulled")
    assert again.returncode == 2
    assert "exists; give the name of a new folder" in again.stderr


def test_refusals_are_one_line(run, tmp_path, hub, monkeypatch):
    with pytest.raises(UserError, match="'tiny' is no name of a repository on the hub; give OWNER/NAME"):
        push_run(run, "tiny")
    with pytest.raises(UserError, match="'ann/none' could not be downloaded") as error:
        pull_run("ann/none", tmp_path / "none", endpoint=hub.address)
    assert "\n" not in str(error.value)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(UserError, match=r"'ann/tiny' could not be uploaded .*hf auth login"):
        push_run(run, "ann/tiny", endpoint=hub.address)
    monkeypatch.setattr(sharing, "hub_answers", lambda: False)
    with pytest.raises(UserError, match="the Hugging Face hub does not answer"):
        pull_run("ann/tiny", tmp_path / "none")
