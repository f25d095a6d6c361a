"""Objects that a folder holds and no proxy needs: said once, not at every change."""

from nodeproxy.kube import manifests
from nodeproxy.kube.manifests import ManifestFolder
from nodeproxy.kube.objects import KINDS

from .support import RecordingSink, service, write


class Log:
    """Stands in for the module's log."""

    def __init__(self):
        self.lines = []

    def info(self, event, **values):
        self.lines.append((event, values))


def pod(name):
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}


def follow(folder, steps=()):
    """Read a folder, and follow it through some steps, each of which ends with a Service of its name."""
    sink, source = RecordingSink(), ManifestFolder(folder)
    source.start(sink)
    try:
        sink.wait(lambda: len(sink.completed) == len(KINDS))
        for step in steps:
            step()
            name = f"marker-{len(sink.objects)}"
            write(folder / f"{name}.json", service(name))
            sink.wait(lambda name=name: any(key.name == name for key in sink.objects))
    finally:
        source.stop()


def test_objects_of_other_kinds_are_counted_in_one_line_at_the_start(tmp_path, monkeypatch):
    log = Log()
    monkeypatch.setattr(manifests, "_log", log)
    write(tmp_path / "a.json", service(), pod("a"), pod("b"))
    write(tmp_path / "b.json", {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "c"}})
    follow(tmp_path, [lambda: write(tmp_path / "c.json", pod("d")), lambda: write(tmp_path / "a.json", pod("a"))])
    assert log.lines == [
        (
            "objects of other kinds ignored",
            {"folder": str(tmp_path), "counts": {"apps/v1 Deployment": 1, "v1 Pod": 2}},
        )
    ]


def test_folder_that_holds_no_other_kinds_is_no_line(tmp_path, monkeypatch):
    log = Log()
    monkeypatch.setattr(manifests, "_log", log)
    write(tmp_path / "a.json", service())
    follow(tmp_path)
    assert log.lines == []
