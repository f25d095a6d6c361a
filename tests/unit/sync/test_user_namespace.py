"""In a user namespace one message to the kernel is limited by the socket's buffer: big changes are cut smaller."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[2]

PROGRAM = """
import json, sys
sys.path[:0] = {paths!r}
from unit.sync.support import Table, endpoints, service
changes = []
for number in range(600):
    one = service(f"s{{number}}", 1, clusterIP=f"10.96.{{number // 250}}.{{number % 250 + 1}}")
    changes += [one, endpoints(f"s{{number}}", range(1, 11))]
table = Table(*changes)
texts = table.sync()
print(json.dumps({{
    "transactions": len(texts),
    "longest": max(map(len, texts)),
    "again": len(table.again().sync()),
    "services": table.last.services,
}}))
"""

SPOILT = """
import json, pathlib, sys, tempfile
sys.path[:0] = {paths!r}
from unit.sync.spoiling import spoil
from unit.sync.support import Table, endpoints, service
changes = []
for number in range(600):
    one = service(f"s{{number}}", 1, clusterIP=f"10.96.{{number // 250}}.{{number % 250 + 1}}")
    changes += [one, endpoints(f"s{{number}}", range(1, 11))]
found = {{}}
with tempfile.TemporaryDirectory() as folder:
    for way in ("unknown statement", "missing chain", "element that leads nowhere"):
        table = Table(*changes, templates=spoil(pathlib.Path(folder), way, ["s42", "s301", "s599"]))
        table.sync()
        found[way] = sorted(str(name) for name in table.proxier.refused())
        table.nft.run("delete table ip kube-proxy")
sys.stdout.write(json.dumps(found) + "\\n")
"""


def test_refused_services_are_named_in_a_user_namespace() -> None:
    program = SPOILT.format(paths=[str(TESTS.parent / "operator"), str(TESTS)])
    done = subprocess.run(
        ["unshare", "-Urn", sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 3
    assert all(names == ["ns/s301", "ns/s42", "ns/s599"] for names in found.values()), found


def test_load_in_a_user_namespace_is_cut_until_it_passes() -> None:
    program = PROGRAM.format(paths=[str(TESTS.parent / "operator"), str(TESTS)])
    done = subprocess.run(
        ["unshare", "-Urn", sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["services"] == 600
    assert found["again"] == 0
    if found["transactions"] <= 4:
        pytest.skip("with this libnftables, pieces of the usual weight fit into one message")
