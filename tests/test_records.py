"""JSON files read by a schema: what does not fit is one line that names file and field."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calligram.errors import UserError
from calligram.records import (
    anything,
    choice,
    flag,
    integer,
    list_of,
    map_of,
    number,
    optional,
    parse_toml,
    read_object,
    record,
    text,
    tuple_of,
)

SCHEMA = record(
    {"name": text(), "size": integer(1, 9)},
    {
        **{"share": number, "on": flag, "kind": choice("a", "b"), "rows": list_of(integer())},
        **{"pair": tuple_of(text(), number), "more": map_of(optional(record({"x": anything})))},
    },
)
WRONG = {
    "": "Expecting value",
    "[1]": "its content must be an object",
    '{"size": 1}': "name is missing",
    '{"name": 3, "size": 1}': "name must be a text, not 3",
    '{"name": "a\\u0000", "size": 1}': "name must be a text",
    '{"name": "a", "size": 0}': "size must be a whole number from 1 to 9, not 0",
    '{"name": "a", "size": true}': "size must be a whole number",
    '{"name": "a", "size": 1' + "0" * 30 + "}": "size must be a whole number",
    '{"name": "a", "size": 1' + "0" * 9000 + "}": "limit",
    '{"name": "a", "size": 1, "share": NaN}': "NaN, which is not a number",
    '{"name": "a", "size": 1, "share": 1e999}': "share must be a number",
    '{"name": "a", "size": 1, "share": null}': "share must be a number, not null",
    '{"name": "a", "size": 1, "kind": "c"}': "kind must be 'a' or 'b'",
    '{"name": "a", "size": 1, "rows": [1, "2"]}': r"rows\.1 must be a whole number",
    '{"name": "a", "size": 1, "pair": ["a"]}': "pair must be a list of 2",
    '{"name": "a", "size": 1, "more": {"b": {}}}': r"more\.b\.x is missing",
    '{"name": "a", "size": 1, "rovs": []}': "unknown field 'rovs'; did you mean 'rows'",
    '{"name": "a", "size": 1, "more": ' + '{"a":' * 60 + "1" + "}" * 60 + "}": "nested too deeply",
    "[" * 100_000: "nested too deeply",
}


@pytest.mark.parametrize("content", WRONG, ids=range(len(WRONG)))
def test_what_does_not_fit_is_one_line_with_file_and_field(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(UserError, match=f"a.json is damaged.*{WRONG[content]}.*; do this") as found:
        read_object(tmp_path / "a.json", "do this", SCHEMA)
    assert "\n" not in str(found.value)
    assert len(str(found.value)) < 500


def test_a_wrong_checksum_is_damage_or_an_edit_by_hand(tmp_path):
    (tmp_path / "a.json").write_text('{"name": "a", "size": 1, "checksum": "00000000"}')
    with pytest.raises(UserError, match=r'its checksum differs.*; do this; .*delete its entry "checksum"'):
        read_object(tmp_path / "a.json", "do this", SCHEMA)


def test_what_fits_is_returned(tmp_path):
    content = {"name": "a", "size": 9, "share": 0.5, "on": True, "kind": "b", "rows": [], "pair": ["a", 1]}
    (tmp_path / "a.json").write_text(json.dumps({**content, "more": {"b": None, "c": {"x": [1]}}}))
    assert read_object(tmp_path / "a.json", "", SCHEMA) == {**content, "more": {"b": None, "c": {"x": [1]}}}


@given(data=st.binary(max_size=200))
def test_any_bytes_are_an_object_or_an_error(tmp_path_factory, data):
    file = tmp_path_factory.mktemp("any") / "a.json"
    file.write_bytes(data)
    with pytest.raises(UserError):
        read_object(file, "", SCHEMA)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a = [[1, 2], 1979-05-27]", r"a\.1 must be a text, a number, true or false, a list or a table"),
        (b"name = 3", "name must be a text, not 3"),
        (b"a = " + b"[" * 5000 + b"]" * 5000, "nested too deeply"),
        (b"a." * 60 + b"b = 1", "nested too deeply"),
        (b"a = 1\n" * 2, "overwrite"),
        (b"\xff = 1", "can't decode"),
        (b"#" * (1 << 21), "more than 1,048,576 bytes"),
    ],
)
def test_settings_in_toml_are_read_by_a_schema(tmp_path, content, message):
    (tmp_path / "a.toml").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        parse_toml(tmp_path / "a.toml", record({}, {"name": text()}, closed=False))
    (tmp_path / "a.toml").write_bytes(b'name = "a"\n[b]\nc = [1.5, true, {d = nan}]\n')
    assert parse_toml(tmp_path / "a.toml")["name"] == "a"
