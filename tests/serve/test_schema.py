"""Requests made up from the API's own description: every answer must be one that the description promises."""

from __future__ import annotations

import json

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis.strategies import characters, integers, text
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from calligram.data.add_captions import clean_caption
from calligram.data.collection import Collection

EXAMPLES = 40
"""per operation, and per kind of request: those that follow the description, and those that break it"""
CHECKS = [
    not_a_server_error,
    checks.content_type_conformance,
    checks.negative_data_rejection,
    checks.response_schema_conformance,
    checks.status_code_conformance,
]
OPERATIONS = [
    ("GET", "/api/search"), ("POST", "/api/search"), ("GET", "/api/browse"), ("GET", "/api/item"),
    ("GET", "/api/tiles"), ("GET", "/api/complete"),
    ("GET", "/api/thumbnail"), ("GET", "/api/image"), ("GET", "/api/health"), ("POST", "/api/login"),
    ("GET", "/metrics"), ("GET", "/api/stats"), ("GET", "/api/locate"), ("GET", "/api/explain"),
    ("GET", "/api/suggestions"), ("POST", "/api/suggestions"), ("GET", "/api/suggested-image"),
    ("POST", "/api/captions"), ("GET", "/api/embed"), ("POST", "/api/embed"), ("POST", "/v1/embeddings"),
    ("GET", "/v1/models"), ("GET", "/api/clusters"), ("GET", "/api/cluster"), ("GET", "/api/duplicates"),
    ("GET", "/api/searches"), ("POST", "/api/searches"), ("DELETE", "/api/searches"), ("GET", "/api/export"),
    ("GET", "/api/timeline"), ("GET", "/api/video"), ("GET", "/api/albums"), ("POST", "/api/albums"),
    ("DELETE", "/api/albums"), ("POST", "/api/album-name"), ("GET", "/api/album-suggestions"),
    ("GET", "/api/album-export"),
]  # fmt: skip
LONGEST = 60_000
"""characters of an address: a server that reads no more of a request hangs up before any of our code sees it"""
PLAIN = ("/api/health", "/metrics", "/api/stats", "/api/suggestions", "/v1/models", "/api/clusters", "/api/timeline")
"""without parameters, so nothing in a request can break the description"""


@pytest.fixture(scope="module")
def session():
    """One connection for all requests."""
    with requests.Session() as kept:
        kept.trust_env = False
        yield kept


@pytest.fixture(scope="module")
def description(served):
    return schemathesis.openapi.from_url(f"{served.url}/api/openapi.json")


def test_every_operation_is_listed_here(description):
    described = {(o.ok().method.upper(), o.ok().path) for o in description.get_all_operations()}
    assert described == set(OPERATIONS)


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_every_answer_conforms_to_the_description(served, copies_served, description, session, method, path):
    if path.startswith(("/api/searches", "/api/album")):
        served = copies_served  # its page is not tested for what is on the start page
    operation = description[path][method]
    plain = path in PLAIN or (method, path) in (("GET", "/api/searches"), ("GET", "/api/albums"))
    for mode in [GenerationMode.POSITIVE] if plain else GenerationMode:

        @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
                  suppress_health_check=list(HealthCheck))  # fmt: skip
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case):
            asked = case.as_transport_kwargs(base_url=served.url)
            assume(len(requests.Request("GET", asked["url"], params=asked.get("params")).prepare().url) <= LONGEST)
            case.call_and_validate(base_url=served.url, session=session, timeout=60, checks=CHECKS)

        check()
    assert served.client.get("/api/health").status_code == 200


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
          suppress_health_check=list(HealthCheck))  # fmt: skip
@given(text=text(characters(exclude_categories=["Cs"]), max_size=1000), k=integers(1, 20))
def test_any_text_can_be_localized(served, text, k):
    """Ids that are made up lead nowhere, so this one is real."""
    id = served.client.get("/api/browse", params={"k": 1}).json()["hits"][0]["id"]
    answer = served.client.get("/api/locate", params={"id": id, "text": text, "k": k})
    if not text.strip():
        assert answer.status_code == 400
        return
    assert answer.status_code == 200, answer.text
    found = answer.json()
    for phrase in found["phrases"]:
        assert text[phrase["start"] : phrase["end"]] == phrase["text"] != ""
        assert len(phrase["boxes"]) <= k
        for x0, y0, x1, y1 in (hit["box"] for hit in phrase["boxes"]):
            assert 0 <= x0 < x1 <= found["width"]
            assert 0 <= y0 < y1 <= found["height"]


@settings(max_examples=30, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
          suppress_health_check=list(HealthCheck))  # fmt: skip
@given(text=text(max_size=1000))
def test_any_caption_is_stored_or_refused(captioning, few_captions, text):
    answer = captioning.client.post(
        "/api/captions",
        content=json.dumps({"id": "scene 20", "text": text}),
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code in (200, 400, 422), answer.text
    if answer.status_code == 200:
        kept = Collection.open(few_captions).column("captions", "text")
        assert clean_caption(text) in kept


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
          suppress_health_check=list(HealthCheck))  # fmt: skip
@given(text=text(characters(exclude_categories=["Cs"]), max_size=1000))
def test_any_text_can_be_explained(served, text):
    id = served.client.get("/api/browse", params={"k": 1}).json()["hits"][0]["id"]
    answer = served.client.get("/api/explain", params={"id": id, "text": text})
    assert answer.status_code in (200, 400), answer.text
    for word in answer.json().get("words", []):
        assert text[word["start"] : word["end"]] == word["word"] != ""
