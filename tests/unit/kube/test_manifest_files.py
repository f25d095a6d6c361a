"""Reading single files: formats, lists, limits."""

import datetime
import json

import pytest
import yaml

from nodeproxy.kube import manifest_files
from nodeproxy.kube.manifest_files import ManifestError, parse_manifest
from nodeproxy.kube.yaml_documents import YamlError, load_documents

from .support import endpoint_slice, service

TEXT = """
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIP: 10.96.0.10
  ports: [{port: 80}]
"""


def names(manifest):
    return [decoded.key.name for decoded in manifest.objects]


def parse(text, name="a.yaml"):
    return parse_manifest(text.encode() if isinstance(text, str) else text, name)


def refusal(text, name="a.yaml"):
    with pytest.raises(ManifestError) as caught:
        parse(text, name)
    return str(caught.value)


def load_one(text):
    (document,) = load_documents(text)
    return document


def test_yaml_and_json_say_the_same():
    (from_yaml,) = parse(TEXT).objects
    (from_json,) = parse(json.dumps(service()), "a.json").objects
    assert from_yaml.object == from_json.object
    assert (from_yaml.origin, from_json.origin) == ("a.yaml#1", "a.json#1")


def test_a_file_may_hold_several_documents():
    text = f"---\n{TEXT}\n---\n---\n# nothing\n---\n{TEXT.replace('web', 'api')}\n...\n"
    manifest = parse(text)
    assert names(manifest) == ["web", "api"]
    assert [decoded.origin for decoded in manifest.objects] == ["a.yaml#1", "a.yaml#4"]


def test_json_may_be_concatenated_and_stand_in_a_yaml_file():
    text = json.dumps(service("a")) + "\n\n" + json.dumps(service("b"), indent=2) + json.dumps(service("c"))
    assert names(parse(text, "x.json")) == names(parse(text, "x.yaml")) == ["a", "b", "c"]
    assert names(parse(json.dumps(service("a")), "x.yaml")) == ["a"]
    assert names(parse(b"\xef\xbb\xbf" + json.dumps(service("a")).encode(), "x.json")) == ["a"]
    assert names(parse("{apiVersion: v1, kind: Node, metadata: {name: n}}", "x.yml")) == ["n"]


@pytest.mark.parametrize("name", ["a.yaml", "a.json"])
def test_lists_are_unpacked(name):
    bare = {key: value for key, value in service("b").items() if key in {"metadata", "spec"}}
    mixed = {"apiVersion": "v1", "kind": "List", "items": [service("a"), endpoint_slice("s"), {"kind": "Pod"}]}
    typed = {"apiVersion": "v1", "kind": "ServiceList", "items": [bare, service("c")]}
    manifest = parse(json.dumps({"apiVersion": "v1", "kind": "List", "items": [mixed, typed]}), name)
    assert names(manifest) == ["a", "s", "b", "c"]
    assert manifest.ignored == {"Pod": 1}
    assert manifest.objects[2].origin == f"{name}#1.items[1].items[0]"
    assert parse(json.dumps({**typed, "items": None}), name).objects == []


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"apiVersion": "v1", "kind": "List", "items": 5}, "items"),
        ({"apiVersion": "discovery.k8s.io/v1beta1", "kind": "EndpointSliceList", "items": []}, "apiVersion"),
        ({"kind": "ServiceList", "items": []}, "apiVersion"),
        ({"apiVersion": "v1", "kind": "List", "items": [{"metadata": {"name": "x"}}]}, "kind"),
        ([service()], ""),
        ("text", ""),
    ],
)
def test_what_is_no_list_and_no_object_is_reported(document, field):
    (decoded,) = parse(json.dumps(document)).objects
    assert (decoded.problems[0].field, decoded.problems[0].fatal) == (field, True)


def test_list_without_a_version_is_told_which_it_must_have():
    (decoded,) = parse(json.dumps({"kind": "EndpointSliceList", "items": []})).objects
    assert decoded.problems[0].reason == "is missing: it must be discovery.k8s.io/v1"


def test_lists_nested_without_end_are_refused():
    document = service()
    for _ in range(12):
        document = {"apiVersion": "v1", "kind": "List", "items": [document]}
    (decoded,) = parse(json.dumps(document)).objects
    assert "nested" in decoded.problems[0].reason


def test_objects_of_other_apis_are_counted():
    text = (
        "apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: x}\n---\n"
        "apiVersion: serving.knative.dev/v1\nkind: ServiceList\nitems: [{}]\n---\n"
        "apiVersion: apps/v1\nkind: Deployment\n---\napiVersion: apps/v1\nkind: Deployment\n"
    )
    manifest = parse(text)
    assert manifest.objects == []
    assert manifest.ignored == {
        "serving.knative.dev/v1 Service": 1,
        "serving.knative.dev/v1 ServiceList": 1,
        "apps/v1 Deployment": 2,
    }


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        (b"a: \xff", "a.yaml", "not UTF-8 at byte 4"),
        (b'{"a": "\xff"}', "a.json", "not UTF-8 at byte 8"),
        ("a: [1", "a.yaml", "not YAML"),
        (TEXT + "\n  bad indent: [", "a.yaml", "line"),
        ("a: \x00", "a.yaml", "not YAML"),
        ("a: !!python/object:os.system x", "a.yaml", "not YAML"),
        ("[" * 5_000, "a.yaml", "nest"),
        ("[" * 200_000, "a.json", "not JSON"),
        ('{"a": NaN}', "a.json", "not a JSON number"),
        ('{"a": 1} x', "a.json", "line 1, column 10"),
        ('{"a": 1', "a.json", "not JSON"),
        ("", "a.yaml", "empty"),
        (" \n" * 100, "a.json", "empty"),
        (f"a: {'9' * 5000}", "a.yaml", "not YAML"),
    ],
)
def test_files_that_cannot_be_read_are_refused_with_the_place(text, name, words):
    message = refusal(text, name)
    assert words in message
    assert "\n" not in message
    assert len(message) < 300


def test_a_file_of_comments_holds_nothing():
    assert parse("# nothing here\n").objects == []


def test_big_files_are_refused(monkeypatch):
    monkeypatch.setattr(manifest_files, "MAX_BYTES", 1000)
    assert refusal("a" * 1001) == "has more than 1000 bytes"
    assert parse(TEXT).objects


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2024-05-01", "2024-05-01"),
        ("2024-05-01T10:00:00Z", "2024-05-01T10:00:00Z"),
        ("1:30", "1:30"),
        ("1:30.5", "1:30.5"),
        ("190:20:30", "190:20:30"),
        ("=", "="),
        ("80", 80),
        ("-8_0", -80),
        ("0x1F", 31),
        ("0b11", 3),
        ("017", 15),
        ("0o17", 15),
        ("089", "089"),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("1e", "1e"),
        ("10.0.0.1", "10.0.0.1"),
        ("fd00::1", "fd00::1"),
        ("0x", "0x"),
        ("0b_", "0b_"),
        (".", "."),
        (".inf", float("inf")),
        ("None", "None"),
        ("~", None),
        ("null", None),
        ("yes", True),
        ("'80'", "80"),
    ],
)
def test_plain_scalars_are_those_of_kubernetes(text, value):
    document = load_one(f"a: {text}")
    assert document == {"a": value}
    assert type(document["a"]) is type(value)


def test_the_readers_of_others_stay_as_they_are():
    assert yaml.load("2024-05-01", Loader=yaml.CSafeLoader) == datetime.date(2024, 5, 1)
    assert yaml.load("1:30", Loader=yaml.CSafeLoader) == 90


def test_anchors_and_merge_keys_work():
    document = load_one("base: &b {x: 1}\nmore: {<<: *b, y: 2}\nagain: *b\n")
    assert document == {"base": {"x": 1}, "more": {"x": 1, "y": 2}, "again": {"x": 1}}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("shape", ["list", "merge"])
def test_aliases_that_multiply_are_refused(shape):
    if shape == "list":
        lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
        lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    else:
        lines = ["a0: &a0 {x: 1, y: 2}"]
        lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 20)}]}}" for n in range(1, 12)]
    assert "aliases expand" in refusal("\n".join(lines))


def test_an_alias_within_itself_is_refused():
    assert "contains itself" in refusal("a: &a [1, *a]")
    with pytest.raises(YamlError, match="contains itself"):
        list(load_documents("&a {b: {c: *a}}"))
