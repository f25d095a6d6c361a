"""Which of several versions of an object is in force."""

import json

from nodeproxy.kube.manifest_files import parse_manifest
from nodeproxy.kube.manifest_state import ManifestState
from nodeproxy.kube.objects import Service
from nodeproxy.kube.source import ObjectKey

from .support import WEB, endpoint_slice, service


def manifest(name, *documents):
    return parse_manifest("\n".join(json.dumps(document) for document in documents).encode(), name)


class Files(ManifestState):
    """Puts documents, and hands changes over at once."""

    def says(self, name, *documents):
        self.put(name, manifest(name, *documents))

    def take(self):
        changes = self.changes()
        self.delivered(changes)
        return {change.key: change.object and port(change.object) for change in changes}


def port(obj):
    return (obj.spec if isinstance(obj, Service) else obj).ports[0].port


def on_port(number, name="web"):
    return service(name, ports=[{"port": number}])


BAD = service(type="Nonsense")
NAMELESS = {**service(), "metadata": {"name": "UPPER"}}


def reasons(files):
    return [(problem.origin, problem.subject, problem.fatal) for problem in files.problems]


def test_only_real_changes_are_told_and_again_until_they_are_delivered():
    files = Files()
    files.says("a.json", on_port(1))
    assert [change.key for change in files.changes()] == [change.key for change in files.changes()] == [WEB]
    assert files.take() == {WEB: 1}
    files.says("a.json", on_port(1))
    assert files.take() == {}
    files.says("a.json", on_port(2), endpoint_slice())
    assert files.take() == {WEB: 2, ObjectKey("EndpointSlice", "shop", "web-1"): 8080}
    files.remove("a.json")
    assert set(files.take().values()) == {None}
    assert files.objects == {}


def test_the_first_file_in_order_wins_and_the_other_takes_over():
    files = Files()
    files.says("b.json", on_port(2))
    assert files.take() == {WEB: 2}
    files.says("a.json", on_port(1))
    assert files.take() == {WEB: 1}
    assert reasons(files) == [("b.json#1", "Service shop/web", False)]
    files.says("b.json", on_port(3))
    assert files.take() == {}
    files.remove("a.json")
    assert files.take() == {WEB: 3}
    assert files.problems == []


def test_the_first_document_of_a_file_wins():
    files = Files()
    files.says("a.json", on_port(1), on_port(2))
    assert files.take() == {WEB: 1}
    assert reasons(files) == [("a.json#2", "Service shop/web", False)]
    files.says("a.json", on_port(2))
    assert files.take() == {WEB: 2}
    assert files.problems == []


def test_a_rename_changes_nothing():
    files = Files()
    files.says("a.json", on_port(1))
    files.take()
    files.remove("a.json")
    files.says("z.json", on_port(1))
    assert files.take() == {}


def test_a_document_that_turns_bad_stays_as_it_was():
    files = Files()
    files.says("a.json", on_port(1), on_port(5, "api"))
    files.take()
    for _ in range(2):
        files.says("a.json", BAD, on_port(6, "api"))
        assert set(files.take().values()) <= {6}
        assert WEB in files.objects
        assert reasons(files) == [("a.json#1", "Service shop/web", True)]
    files.says("a.json", on_port(6, "api"))
    assert files.take() == {WEB: None}


def test_a_bad_document_keeps_its_place_before_others():
    files = Files()
    files.says("a.json", on_port(1))
    files.says("b.json", on_port(2))
    files.take()
    files.says("a.json", BAD)
    assert files.take() == {}
    files.says("b.json", on_port(3))
    assert files.take() == {}
    files.remove("a.json")
    assert files.take() == {WEB: 3}


def test_a_document_that_was_never_good_leaves_the_object_to_others():
    files = Files()
    files.says("a.json", BAD)
    files.says("b.json", on_port(2))
    assert files.take() == {WEB: 2}
    files.says("b.json", on_port(3))
    assert files.take() == {WEB: 3}


def test_a_file_that_is_renamed_and_broken_at_once_keeps_the_object():
    files = Files()
    files.says("a.json", on_port(1))
    files.take()
    files.remove("a.json")
    files.says("b.json", BAD)
    assert files.take() == {}
    files.says("b.json", BAD)
    assert files.take() == {}
    assert WEB in files.objects
    files.says("b.json", on_port(2))
    assert files.take() == {WEB: 2}


def test_a_bad_document_without_a_name_could_be_any_that_the_file_held():
    files = Files()
    files.says("a.json", on_port(1), on_port(5, "api"))
    files.take()
    files.says("a.json", NAMELESS, on_port(6, "api"))
    assert files.take() == {ObjectKey("Service", "shop", "api"): 6}
    assert WEB in files.objects
    files.says("a.json", on_port(6, "api"))
    assert files.take() == {WEB: None}


def test_a_file_that_fails_keeps_what_it_held():
    files = Files()
    files.says("a.json", on_port(1), {"apiVersion": "v1", "kind": "Pod"})
    files.take()
    files.fail("a.json", "is not JSON")
    assert files.take() == {}
    assert [(problem.origin, problem.reason, problem.fatal) for problem in files.problems] == [
        ("a.json", "is not JSON", True)
    ]
    files.excuse("a.json")
    assert files.problems == []
    assert files.ignored == {"v1 Pod": 1}
    files.fail("a.json", "is not JSON")
    files.remove("a.json")
    assert files.take() == {WEB: None}
    assert files.problems == []


# --- what stays in force of what is bad ------------------------------------------------------------------------------


def kept(files):
    return [(problem.origin, problem.kept) for problem in files.problems]


def test_problem_says_whether_an_earlier_version_stays_in_force():
    files = Files()
    files.says("a.json", on_port(1), service("api", type="Nonsense"))
    files.take()
    assert kept(files) == [("a.json#2", False)], "it was never good"
    files.says("a.json", BAD, service("api", type="Nonsense"))
    files.take()
    assert kept(files) == [("a.json#1", True), ("a.json#2", False)]
    files.says("a.json", NAMELESS)
    files.take()
    assert kept(files) == [("a.json#1", True)], "it may be what the file held"


def test_nameless_document_in_a_file_that_held_nothing_else_keeps_nothing():
    files = Files()
    files.says("a.json", on_port(1), NAMELESS)
    files.take()
    assert kept(files) == [("a.json#2", False)]


def test_file_that_cannot_be_read_says_whether_what_it_held_stays_in_force():
    files = Files()
    files.says("good.json", on_port(1))
    files.says("sub/good.json", on_port(2, "api"))
    files.says("bad.json", service("bad", type="Nonsense"))
    files.take()
    for name in ("good.json", "bad.json", "new.json"):
        files.fail(name, "Permission denied")
    for name in ("sub", "other"):
        files.fail(name, "Permission denied", directory=True)
    assert [found for found in kept(files) if "#" not in found[0]] == [
        ("bad.json", False),
        ("good.json", True),
        ("new.json", False),
        ("other", False),
        ("sub", True),
    ]


def test_problems_are_in_the_order_of_documents_and_fields_whatever_files_are_called():
    """Also where names hold digits that are none of 0 to 9."""
    files = Files()
    ports = [{"port": 0, "name": f"p{number}"} for number in range(11)]
    for name in ("\u00b2\u0664.json", "\u00b22.json"):
        files.says(name, *(service(f"s{number}-{len(name)}", ports=ports[:1]) for number in range(11)))
    files.says("a.json", service("many", ports=ports))
    numbers = range(1, 12)
    assert [problem.origin for problem in files.problems if problem.field == "spec.ports[0].port"] == [
        "a.json#1",
        *(f"\u00b22.json#{number}" for number in numbers),
        *(f"\u00b2\u0664.json#{number}" for number in numbers),
    ]
    assert [problem.field for problem in files.problems if problem.origin == "a.json#1"] == [
        f"spec.ports[{number}].port" for number in range(11)
    ]
