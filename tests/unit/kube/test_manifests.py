"""Following a real folder: every way in which files change, and what must not be lost."""

import os
import shutil
import statistics
import threading
import time
import types

import pytest

from nodeproxy.kube import manifest_files, manifests
from nodeproxy.kube.manifests import ManifestFolder, load
from nodeproxy.kube.objects import KINDS
from nodeproxy.kube.source import ObjectKey, SourceError

from .support import WEB, RecordingSink, endpoint_slice, service, write

API = ObjectKey("Service", "shop", "api")


def web(port, name="web"):
    return service(name, ports=[{"port": port}])


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "manifests"
    path.mkdir()
    return path


@pytest.fixture
def follow(folder):
    """Start to follow the folder; returns the sink once the initial state is complete."""
    started = []

    def start(path=folder, **options):
        sink = RecordingSink()
        source = ManifestFolder(path, **options)
        source.start(sink)
        started.append(source)
        sink.wait(lambda: len(sink.completed) == len(KINDS))
        sink.source = source
        return sink

    yield start
    for source in started:
        source.stop()
        assert not source._thread.is_alive()


@pytest.fixture
def no_rescans(monkeypatch):
    """Rely on events alone."""
    monkeypatch.setattr(manifests, "_RECHECK_SECONDS", 1_000.0)


def settle(sink, folder, name="marker"):
    """Wait until all that was done to the folder before has been delivered."""
    port = int(time.monotonic_ns() % 60_000) + 1
    write(folder / f"{name}.json", web(port, name))
    sink.wait_for_port(port, ObjectKey("Service", "shop", name))


# --- loading once ----------------------------------------------------------------------------------------------------


def test_load_reads_nested_folders_and_skips_hidden_and_other_files(folder):
    write(folder / "a.json", web(80))
    (folder / "deep" / "er").mkdir(parents=True)
    write(folder / "deep" / "er" / "b.YML", endpoint_slice(), {"apiVersion": "v1", "kind": "Pod"})
    write(folder / ".hidden.json", web(81, "hidden"))
    (folder / ".git").mkdir()
    write(folder / ".git" / "c.json", web(82, "git"))
    write(folder / "notes.txt", web(83, "notes"))
    (folder / "broken.yaml").write_text("a: [")
    os.mkfifo(folder / "pipe.yaml")
    loaded = load(folder)
    assert set(loaded.objects) == {WEB, ObjectKey("EndpointSlice", "shop", "web-1")}
    assert loaded.ignored == {"v1 Pod": 1}
    assert [(problem.origin, problem.fatal) for problem in loaded.problems] == [("broken.yaml", True)]


def test_load_reads_one_file_of_any_name(folder):
    write(folder / "objects", web(80))
    assert set(load(folder / "objects").objects) == {WEB}


def test_problems_name_file_and_document(folder):
    (folder / "sub").mkdir()
    write(folder / "sub" / "a.json", web(80), service("api", ports=[{"port": 0}]))
    (problem,) = load(folder).problems
    assert (problem.origin, problem.subject, problem.field) == (
        "sub/a.json#2",
        "Service shop/api",
        "spec.ports[0].port",
    )


def test_loops_of_symlinks_end_and_a_directory_counts_once(folder):
    (folder / "sub").mkdir()
    write(folder / "sub" / "a.json", web(80))
    (folder / "sub" / "up").symlink_to(folder)
    (folder / "again").symlink_to(folder / "sub")
    (folder / "self.yaml").symlink_to(folder / "self.yaml")
    (folder / "nowhere.yaml").symlink_to(folder / "nothing")
    loaded = load(folder)
    assert set(loaded.objects) == {WEB}
    assert [(problem.origin, problem.reason) for problem in loaded.problems] == [
        ("nowhere.yaml", "is a symlink that leads nowhere"),
        ("self.yaml", "Too many levels of symbolic links"),
    ]


@pytest.mark.parametrize("what", ["file", "directory"])
def test_symlink_that_leads_nowhere_any_more_leaves_what_it_held(folder, tmp_path, follow, what):
    """Like a file that can't be read; only a link that is deleted takes its objects along."""
    outside = tmp_path / "outside"
    outside.mkdir()
    write(outside / "a.yaml", web(80))
    link = folder / ("a.yaml" if what == "file" else "linked")
    link.symlink_to(outside / "a.yaml" if what == "file" else outside)
    sink = follow()
    assert set(sink.objects) == {WEB}
    outside.rename(tmp_path / "elsewhere")
    sink.wait(lambda: [p.reason for p in sink.problems] == ["is a symlink that leads nowhere"])
    assert set(sink.objects) == {WEB}
    (tmp_path / "elsewhere").rename(outside)
    sink.wait(lambda: not sink.problems)
    assert set(sink.objects) == {WEB}
    outside.rename(tmp_path / "elsewhere")
    link.unlink()
    sink.wait(lambda: not sink.objects and not sink.problems)


def test_symlinks_out_of_the_folder_are_followed(folder, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    write(outside / "a.json", web(80))
    write(outside / "b", web(81, "api"))
    (folder / "linked").symlink_to(outside)
    (folder / "b.json").symlink_to(outside / "b")
    assert set(load(folder).objects) == {WEB, API}


@pytest.mark.parametrize("name", ["missing", "file"])
def test_a_folder_that_is_none_is_refused(folder, name):
    (folder / "file").write_text("")
    with pytest.raises(SourceError, match=name):
        ManifestFolder(folder / name).start(RecordingSink())
    with pytest.raises(SourceError, match="missing"):
        load(folder / "missing")


# --- starting and stopping -------------------------------------------------------------------------------------------


def test_the_initial_state_comes_in_one_batch_and_is_then_complete(folder, follow):
    write(folder / "a.json", web(80))
    write(folder / "b.json", web(81, "api"))
    sink = follow()
    assert set(sink.objects) == {WEB, API}
    assert sink.log == ["apply", *(f"complete {kind}" for kind in KINDS)]


def test_an_empty_folder_is_complete_too(follow):
    assert follow().objects == {}


def test_nothing_is_delivered_after_stop(folder, follow):
    sink = follow()
    began = time.monotonic()
    sink.source.stop()
    assert time.monotonic() - began < 2.0
    write(folder / "a.json", web(80))
    sink.source.stop()
    assert sink.objects == {}
    with pytest.raises(SourceError, match="already"):
        sink.source.start(sink)


# --- single files ----------------------------------------------------------------------------------------------------


def test_files_are_followed_by_events_alone(folder, follow, no_rescans):
    sink = follow(rescan_seconds=1_000.0)
    (folder / "a.yaml").write_text("apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {}\n")
    sink.wait(lambda: WEB in sink.objects)
    write(folder / "a.yaml", web(80))
    sink.wait_for_port(80)
    write(folder / "b.yaml", web(81, "api"))
    sink.wait_for_port(81, API)
    (folder / "a.yaml").unlink()
    sink.wait(lambda: set(sink.objects) == {API})
    assert sink.problems == []


def test_one_edit_reads_one_file(folder, follow, monkeypatch, no_rescans):
    for number in range(50):
        write(folder / f"{number}.json", web(80, f"s{number}"))
    sink = follow(rescan_seconds=1_000.0)
    read = []
    parse = manifests.ManifestReader.read
    monkeypatch.setattr(manifests.ManifestReader, "read", lambda self, name: (read.append(name), parse(self, name)))
    monkeypatch.setattr(manifests.ManifestReader, "rescan", lambda *_: read.append("rescan"))
    write(folder / "7.json", web(90, "s7"))
    sink.wait_for_port(90, ObjectKey("Service", "shop", "s7"))
    assert set(read) == {"7.json"}


def test_a_rename_delivers_nothing(folder, follow):
    write(folder / "a.json", web(80))
    sink = follow()
    (folder / "a.json").rename(folder / "z.json")
    settle(sink, folder)
    (folder / "sub").mkdir()
    (folder / "z.json").rename(folder / "sub" / "z.json")
    settle(sink, folder)
    assert [change.key.name for batch in sink.batches[1:] for change in batch] == ["marker", "marker"]


def test_an_edit_without_effect_delivers_nothing(folder, follow):
    write(folder / "a.json", web(80))
    sink = follow()
    (folder / "a.json").write_text((folder / "a.json").read_text() + "\n\n")
    settle(sink, folder)
    assert len(sink.batches) == 2


def test_a_broken_file_changes_nothing_but_a_report(folder, follow):
    write(folder / "a.json", web(80))
    sink = follow()
    for content in (b'{"kind": "Serv', b"", b"\xff\xfe"):
        (folder / "a.json").write_bytes(content)
        sink.wait(lambda: [problem.origin for problem in sink.problems] == ["a.json"])
        settle(sink, folder)
        assert WEB in sink.objects
    write(folder / "a.json", web(81))
    sink.wait_for_port(81)
    sink.wait(lambda: sink.problems == [])
    assert all(change.object for batch in sink.batches for change in batch)


def test_file_that_is_broken_at_the_start_keeps_nothing_and_later_what_it_held(folder, follow):
    (folder / "a.json").write_text("{")
    sink = follow()
    sink.wait(lambda: [(problem.origin, problem.kept) for problem in sink.problems] == [("a.json", False)])
    assert sink.objects == {}
    write(folder / "a.json", web(80))
    sink.wait_for_port(80)
    (folder / "a.json").write_text("{")
    sink.wait(lambda: [(problem.origin, problem.kept) for problem in sink.problems] == [("a.json", True)])
    assert WEB in sink.objects


def test_a_file_that_grows_too_big_changes_nothing_but_a_report(folder, follow, monkeypatch):
    monkeypatch.setattr(manifest_files, "MAX_BYTES", 2_000)
    write(folder / "a.json", web(80))
    sink = follow()
    (folder / "a.json").write_text(" " * 3_000)
    sink.wait_for_problem("has more than 2000 bytes")
    assert WEB in sink.objects


def test_a_file_that_grows_while_it_is_read_is_read_to_its_end(folder, monkeypatch):
    """Its size was asked for before that."""
    write(folder / "web.json", web(80))
    asked = os.fstat

    def smaller(descriptor):
        status = asked(descriptor)
        fields = {name: getattr(status, name) for name in dir(status) if name.startswith("st_")}
        return types.SimpleNamespace(**{**fields, "st_size": 10})

    monkeypatch.setattr(os, "fstat", smaller)
    loaded = load(folder)
    assert list(loaded.objects) == [WEB]
    assert not loaded.problems


def test_duplicates_are_reported_and_take_over(folder, follow):
    write(folder / "a.json", web(80))
    write(folder / "b.json", web(81))
    sink = follow()
    sink.wait_for_problem("b.json#1 is the same object as in a.json#1")
    sink.wait_for_port(80)
    (folder / "a.json").unlink()
    sink.wait_for_port(81)
    sink.wait(lambda: sink.problems == [])
    assert all(change.object for batch in sink.batches for change in batch)


def test_an_edit_that_keeps_size_and_time_is_noticed(folder, follow):
    write(folder / "a.json", web(80))
    status = (folder / "a.json").stat()
    sink = follow()
    (folder / "a.json").write_text((folder / "a.json").read_text().replace("80", "81"))
    os.utime(folder / "a.json", ns=(status.st_atime_ns, status.st_mtime_ns))
    sink.wait_for_port(81)
    assert (folder / "a.json").stat().st_size == status.st_size


def test_what_a_missed_event_hides_is_found_later(folder, follow, monkeypatch):
    monkeypatch.setattr(manifests.ManifestReader, "update", lambda *_: False)
    sink = follow(rescan_seconds=0.3)
    write(folder / "a.json", web(80))
    sink.wait_for_port(80)
    (folder / "a.json").unlink()
    sink.wait(lambda: sink.objects == {})


def test_edits_are_delivered_within_milliseconds(folder, follow):
    write(folder / "a.json", web(1))
    sink = follow()
    took = []
    for port in range(2, 12):
        began = time.monotonic()
        write(folder / "a.json", web(port))
        sink.wait_for_port(port)
        took.append(time.monotonic() - began)
    assert statistics.median(took) < 0.25, took  # About 0.02 on an idle machine.


def test_many_edits_at_once_all_arrive(folder, follow, monkeypatch):
    monkeypatch.setattr(manifests, "_MANY_EVENTS", 100)
    sink = follow()
    for number in range(400):
        (folder / f"{number}.json").write_text("{")
        write(folder / f"{number}.json", web(80, f"s{number}"))
    sink.wait(lambda: len(sink.objects) == 400)
    sink.wait(lambda: sink.problems == [])


# --- directories -----------------------------------------------------------------------------------------------------


def test_directories_may_come_move_and_go(folder, follow, tmp_path):
    sink = follow()
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    write(outside / "deep" / "a.json", web(80))
    outside.rename(folder / "in")
    sink.wait_for_port(80)
    write(folder / "in" / "deep" / "a.json", web(81))
    sink.wait_for_port(81)
    (folder / "in").rename(folder / "moved")
    settle(sink, folder)
    write(folder / "moved" / "deep" / "a.json", web(82))
    sink.wait_for_port(82)
    assert all(change.object for batch in sink.batches for change in batch)
    (folder / "moved").rename(outside)
    sink.wait(lambda: WEB not in sink.objects)


def test_files_made_together_with_their_directory_are_found(folder, follow):
    sink = follow()
    for number in range(20):
        (folder / f"d{number}" / "e").mkdir(parents=True)
        write(folder / f"d{number}" / "e" / "a.json", web(80, f"s{number}"))
    sink.wait(lambda: len(sink.objects) == 20)
    shutil.rmtree(folder / "d3")
    sink.wait(lambda: len(sink.objects) == 19)


def test_a_directory_that_cannot_be_listed_keeps_what_it_held(folder, monkeypatch):
    (folder / "sub").mkdir()
    write(folder / "sub" / "a.json", web(80))
    reader = manifests.ManifestReader(folder)
    reader.rescan()
    reader.state.delivered(reader.state.changes())
    real = os.scandir

    def refuse(path):
        if str(path).endswith("/sub"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    reader.rescan()
    assert reader.state.changes() == []
    assert [(problem.origin, problem.reason) for problem in reader.state.problems] == [("sub", "Permission denied")]
    monkeypatch.setattr(os, "scandir", real)
    reader.rescan()
    assert reader.state.problems == []


def test_a_file_that_may_not_be_read_keeps_what_it_held_until_it_may(folder, monkeypatch):
    write(folder / "a.json", web(80))
    reader = manifests.ManifestReader(folder)
    reader.rescan()
    reader.state.delivered(reader.state.changes())
    real = os.open

    def refuse(path, *args, **options):
        if str(path).endswith("a.json"):
            raise PermissionError(13, "Permission denied")
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", refuse)
    reader.read("a.json")
    assert reader.state.changes() == []
    assert reader.state.problems[0].reason == "Permission denied"
    monkeypatch.setattr(os, "open", real)
    reader.rescan()
    assert reader.state.problems == []


# --- symlinks --------------------------------------------------------------------------------------------------------


def fill_config_map(folder, version, **files):
    """Write a version of a mounted ConfigMap and swap to it in the way the kubelet does."""
    data = folder / f"..2024_{version}"
    data.mkdir()
    for name, port in files.items():
        write(data / f"{name}.yaml", web(port, name))
    (folder / "..data_tmp").symlink_to(data.name)
    (folder / "..data_tmp").rename(folder / "..data")
    for name in files:
        link = folder / f"{name}.yaml"
        if not link.is_symlink():
            link.symlink_to(f"..data/{name}.yaml")
    for path in folder.iterdir():
        if path.is_symlink() and path.name != "..data" and path.stem not in files:
            path.unlink()
        if path.is_dir() and not path.is_symlink() and path != data:
            shutil.rmtree(path)


def test_a_mounted_config_map_is_followed_when_it_is_swapped(folder, follow):
    fill_config_map(folder, 1, web=80, api=90)
    sink = follow()
    assert set(sink.objects) == {WEB, API}
    fill_config_map(folder, 2, web=81, api=90)
    sink.wait_for_port(81)
    fill_config_map(folder, 3, web=82)
    sink.wait_for_port(82)
    sink.wait(lambda: set(sink.objects) == {WEB})
    fill_config_map(folder, 4, web=83, api=91)
    sink.wait_for_port(91, API)
    sink.wait_for_port(83)
    assert [change.key for batch in sink.batches for change in batch if change.object is None] == [API]
    assert sink.problems == []


def test_a_config_map_may_be_mounted_into_an_empty_folder(folder, follow):
    sink = follow()
    fill_config_map(folder, 1, web=80)
    sink.wait_for_port(80)


def test_edits_behind_symlinks_are_noticed(folder, follow, tmp_path):
    outside = tmp_path / "outside"
    (outside / "directory").mkdir(parents=True)
    write(outside / "a.json", web(80))
    write(outside / "directory" / "b.json", web(80, "api"))
    (folder / "a.json").symlink_to(outside / "a.json")
    (folder / "linked").symlink_to(outside / "directory")
    sink = follow()
    (outside / "a.json").write_text((outside / "a.json").read_text().replace("80", "81"))
    sink.wait_for_port(81)
    write(outside / "directory" / "b.json", web(82, "api"))
    sink.wait_for_port(82, API)
    write(outside / "directory" / "c.json", web(83, "new"))
    sink.wait_for_port(83, ObjectKey("Service", "shop", "new"))
    (folder / "linked").unlink()
    sink.wait(lambda: set(sink.objects) == {WEB})


def test_a_dangling_symlink_comes_to_life(folder, follow, tmp_path):
    (folder / "a.json").symlink_to(tmp_path / "later")
    sink = follow()
    write(tmp_path / "later", web(80))
    sink.wait_for_port(80)


# --- the folder itself -----------------------------------------------------------------------------------------------


def test_a_folder_that_vanishes_keeps_its_state_and_comes_back(folder, follow):
    write(folder / "a.json", web(80))
    sink = follow()
    folder.rename(folder.with_name("away"))
    sink.wait_for_problem("cannot be followed")
    assert [problem.kept for problem in sink.problems] == [True]
    assert WEB in sink.objects
    folder.mkdir()
    write(folder / "a.json", web(81))
    sink.wait_for_port(81)
    sink.wait(lambda: sink.problems == [])
    write(folder / "a.json", web(82))
    sink.wait_for_port(82)
    assert sink.completed == list(KINDS)


def test_a_folder_replaced_by_another_is_followed(folder, follow):
    write(folder / "a.json", web(80))
    sink = follow()
    other = folder.with_name("other")
    other.mkdir()
    write(other / "b.json", web(90))
    folder.rename(folder.with_name("old"))
    other.rename(folder)
    sink.wait_for_port(90)
    write(folder / "b.json", web(91))
    sink.wait_for_port(91)


def test_a_symlink_as_the_folder_is_followed_to_where_it_leads_now(folder, follow, tmp_path):
    write(folder / "a.json", web(80))
    other = tmp_path / "other"
    other.mkdir()
    write(other / "a.json", web(81))
    current = tmp_path / "current"
    current.symlink_to(folder)
    sink = follow(current)
    sink.wait_for_port(80)
    (tmp_path / "next").symlink_to(other)
    (tmp_path / "next").rename(current)
    sink.wait_for_port(81)
    write(other / "a.json", web(82))
    sink.wait_for_port(82)


# --- supervision -----------------------------------------------------------------------------------------------------


class Flaky(RecordingSink):
    """Raises the first times it is called."""

    def __init__(self, failures):
        super().__init__()
        self.failures = failures

    def apply(self, changes):
        if self.failures:
            self.failures -= 1
            message = "the sink is full"
            raise RuntimeError(message)
        super().apply(changes)


def test_an_error_is_reported_and_the_watch_starts_again(folder):
    write(folder / "a.json", web(80))
    sink = Flaky(1)
    source = ManifestFolder(folder)
    source.start(sink)
    try:
        sink.wait_for_problem("RuntimeError: the sink is full")
        sink.wait_for_port(80)
        sink.wait(lambda: sink.problems == [] and sink.completed == list(KINDS))
        sink.failures = 1
        write(folder / "a.json", web(81))
        sink.wait_for_port(81)
    finally:
        source.stop()


def test_a_watch_that_cannot_be_set_up_is_tried_again(folder, monkeypatch):
    write(folder / "a.json", web(80))
    refused = threading.Event()
    real = manifests.RustNotify

    def refuse_once(*args):
        if not refused.is_set():
            refused.set()
            raise OSError(28, "No space left on device")
        return real(*args)

    monkeypatch.setattr(manifests, "RustNotify", refuse_once)
    sink = RecordingSink()
    source = ManifestFolder(folder)
    source.start(sink)
    try:
        sink.wait_for_problem("No space left on device")
        sink.wait_for_port(80)
        sink.wait(lambda: sink.problems == [])
    finally:
        source.stop()
    assert refused.is_set()
