"""YAML with explicit tags: what no constructor takes is a file that is no YAML, and nothing else."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeproxy.kube.manifest_files import MAX_YAML_BYTES, ManifestError, parse_manifest
from nodeproxy.kube.manifests import ManifestFolder, load
from nodeproxy.kube.objects import KINDS
from nodeproxy.kube.yaml_documents import YamlError, load_documents

from .support import WEB, RecordingSink, service, write

BAD = [
    '!!int ""',
    "!!int foo",
    "!!int _",
    "!!int 0x",
    "!!int 1:x",
    '!!float ""',
    "!!float foo",
    "!!float 1:x",
    "!!float .",
    "!!bool foo",
    '!!bool ""',
    "!!timestamp foo",
    '!!timestamp ""',
    "!!timestamp 2024-99-99",
    "!!timestamp 2024-01-01T99:99:99Z",
    "!!python/object:os.system x",
    "!!python/object/apply:os.system [x]",
    "!!python/name:os.system ''",
    "!!python/tuple [1]",
    "!!binary x",
    "!!binary é",
    "!!set [a]",
    "!!omap {a: 1}",
    "!!omap [1]",
    "!!pairs [{a: 1, b: 2}]",
    "!!map [a]",
    "!!seq {a: 1}",
    "!!str [a]",
    "!!map a",
    "!own a",
    "!<tag:example.org,2024:x> a",
    "{!!seq [a]: 1}",
    "{? {a: 1} : 1}",
]
TAGS = ["int", "float", "bool", "null", "str", "timestamp", "binary", "set", "omap", "pairs", "map", "seq", "value"]
TAGS += ["merge", "python/none", "python/object:os.system", "python/object/apply:os.system", "nothing", "yaml"]


def manifest(value: str) -> str:
    return f"apiVersion: v1\nkind: Service\nmetadata: {{name: odd, namespace: shop}}\nspec: {value}\n"


@pytest.mark.parametrize("value", BAD)
def test_value_that_its_tag_does_not_fit_makes_the_file_no_yaml(value):
    with pytest.raises(ManifestError, match=r"^is not YAML: .+") as caught:
        parse_manifest(manifest(value).encode(), "a.yaml")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("value", ['!!int ""', "!!float foo", "!!bool foo", "!!timestamp foo"])
def test_reason_says_that_a_value_does_not_fit_its_tag(value):
    with pytest.raises(ManifestError, match="a value can't be read, or does not fit its tag"):
        parse_manifest(manifest(value).encode(), "a.yaml")


SCALARS = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=12),
    st.sampled_from(["", "_", "0x", "0b", "1:2:3", "1:", ".", "-", "+", "1e", "~", "=", "<<", "2024-01-01", "nan"]),
    st.from_regex(r"[-+0-9_.:xbeTZ]{0,20}", fullmatch=True),
)
NODES = st.one_of(
    SCALARS.map(json.dumps),
    SCALARS.filter(lambda text: "\n" not in text),
    st.lists(SCALARS.map(json.dumps), max_size=3).map(lambda parts: f"[{', '.join(parts)}]"),
    st.lists(st.tuples(SCALARS.map(json.dumps), SCALARS.map(json.dumps)), max_size=3).map(
        lambda pairs: "{" + ", ".join(f"{key}: {value}" for key, value in pairs) + "}"
    ),
)


@given(st.lists(st.tuples(st.sampled_from(TAGS), NODES), min_size=1, max_size=4))
def test_any_tag_on_any_value_is_read_or_is_no_yaml(pairs):
    text = "".join(f"- !!{tag} {node}\n" for tag, node in pairs)
    try:
        documents = list(load_documents(text))
    except YamlError as error:
        assert "\n" not in str(error)  # noqa: PT017 -- either of the two may be
    else:
        assert isinstance(documents, list)


@given(st.sampled_from(TAGS), NODES)
def test_object_that_holds_any_tag_is_decoded_or_refused(tag, node):
    try:
        parse_manifest(manifest(f"{{clusterIP: !!{tag} {node}}}").encode(), "a.yaml")
    except ManifestError as error:
        assert str(error)  # noqa: PT017 -- either of the two may be


def test_files_that_are_no_yaml_are_named_and_delay_no_other(tmp_path):
    for number, value in enumerate(BAD[:8]):
        (tmp_path / f"bad-{number}.yaml").write_text(manifest(value))
    write(tmp_path / "good.json", service())
    started = time.monotonic()
    loaded = load(tmp_path)
    assert [(problem.origin, problem.fatal) for problem in loaded.problems] == [
        (f"bad-{number}.yaml", True) for number in range(8)
    ]
    assert all("is not YAML" in problem.reason for problem in loaded.problems)
    assert [obj.metadata.name for obj in loaded.objects.values()] == ["web"]
    assert time.monotonic() - started < 2


def test_folder_that_is_followed_stays_usable_with_files_that_are_no_yaml(tmp_path):
    for number, value in enumerate(BAD[:8]):
        (tmp_path / f"bad-{number}.yaml").write_text(manifest(value))
    write(tmp_path / "good.json", service())
    sink, source = RecordingSink(), ManifestFolder(tmp_path)
    started = time.monotonic()
    source.start(sink)
    try:
        sink.wait(lambda: len(sink.completed) == len(KINDS) and WEB in sink.objects)
        assert time.monotonic() - started < 3
        write(tmp_path / "good.json", service(ports=[{"port": 8080}]))
        sink.wait_for_port(8080)
        (tmp_path / "bad-0.yaml").unlink()
        sink.wait(lambda: {problem.origin for problem in sink.problems} == {f"bad-{n}.yaml" for n in range(1, 8)})
    finally:
        source.stop()


# --- size ------------------------------------------------------------------------------------------------------------


def padded(size: int) -> str:
    """A manifest in JSON of so many bytes."""
    raw = service()
    raw["metadata"]["annotations"] = {"padding": ""}
    raw["metadata"]["annotations"]["padding"] = "x" * (size - len(json.dumps(raw)))
    text = json.dumps(raw)
    assert len(text) == size
    return text


@pytest.mark.parametrize("name", ["big.json", "big.yaml"])
def test_json_may_be_larger_than_yaml_whatever_the_file_is_called(name):
    (decoded,) = parse_manifest(padded(MAX_YAML_BYTES + 1000).encode(), name).objects
    assert decoded.object.metadata.name == "web"


def test_yaml_that_is_too_large_is_refused_at_once_and_told_what_to_do():
    text = manifest("{clusterIP: 10.96.0.10}") + "# padding\n" * (MAX_YAML_BYTES // 10)
    started = time.monotonic()
    with pytest.raises(ManifestError, match=f"more than {MAX_YAML_BYTES} bytes of YAML.*several files.*JSON"):
        parse_manifest(text.encode(), "a.yaml")
    assert time.monotonic() - started < 1


def test_yaml_of_the_largest_size_is_read():
    text = manifest("{clusterIP: 10.96.0.10, ports: [{port: 80}]}")
    text += "#" + "x" * (MAX_YAML_BYTES - len(text) - 1)
    assert len(text) == MAX_YAML_BYTES
    (decoded,) = parse_manifest(text.encode(), "a.yaml").objects
    assert decoded.object.metadata.name == "odd"


def test_yaml_that_is_too_large_is_named_and_stops_no_other(tmp_path):
    (tmp_path / "big.yaml").write_text("a: 1\n" * (MAX_YAML_BYTES // 5 + 1))
    write(tmp_path / "good.json", service())
    loaded = load(tmp_path)
    assert [problem.origin for problem in loaded.problems] == ["big.yaml"]
    assert len(loaded.objects) == 1
