"""The demo does what it says."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SERVICES = {
    "emailservice",
    "checkoutservice",
    "recommendationservice",
    "frontend",
    "frontend-external",
    "paymentservice",
    "productcatalogservice",
    "cartservice",
    "redis-cart",
    "currencyservice",
    "shippingservice",
    "adservice",
    "webhook",
    "partners",
    "sessions",
    "metrics",
    "reviews",
    "coming-soon",
}


def pasted(command: str) -> str:
    """What a command line prints in the root of the repository; it must not complain."""
    done = subprocess.run(shlex.split(command), cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def shown(text: str, command: str) -> tuple[str, str]:
    """The one command line in a text that has these words, and the output below it."""
    ((line, output),) = re.findall(rf"^\$ (.*{re.escape(command)}.*)\n((?:.*\n)*?}}\n)", text, re.MULTILINE)
    return line, output


def test_demo_succeeds(tmp_path: Path) -> None:
    """Every Service is connected to, traffic leaves the pod that dies, rules are shown, and the exit code is 0."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "demo" / "demo.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    before, _, after = done.stdout.partition("A pod dies: frontend-2")
    assert {line.split()[0] for line in before.splitlines() if line.strip()} >= SERVICES
    rows = [line for line in after.splitlines() if line.startswith("  frontend")]
    assert len([row for row in rows if "/tcp" in row]) == 4
    assert all("-2:" not in row for row in rows)
    assert "FAILED" not in done.stdout
    assert re.search(r"How to read it: .*pod 1 of the Service", before)

    # What is rendered is what is then, and whoever pastes the line later sees the same.
    line, output = shown(after, "nodeproxy render")
    targets = set(re.findall(r"\d+ : (10\.180\.\S+ \. \d+)", output))
    assert len(targets) == 2
    assert "numgen random mod 2" in output
    assert pasted(line).rstrip() == output.rstrip()

    # The kernel has the same two, in the slots that its chain names, and one sees who they are.
    _, chain = shown(after, "nft list chain")
    found = re.search(r"mod 2 offset (\d+) map @(\S+)", chain)
    assert found is not None
    slots = [int(found[1]), int(found[1]) + 1]
    line, elements = shown(after, "nft get element")
    assert line == f"nft get element ip kube-proxy {found[2]} '{{ {slots[0]}, {slots[1]} }}'"
    assert set(re.findall(r"\d+ : (10\.180\.\S+ \. \d+)", elements)) == targets
    assert re.findall(r"^slot (\d+) is (\S+)$", after, re.MULTILINE) == [
        (str(slots[0]), "frontend-1"),
        (str(slots[1]), "frontend-3"),
    ]


def test_render_command_of_the_page_works_when_pasted() -> None:
    """In the root of the repository; so do the flags of the other one, which would not end by itself."""
    page = (ROOT / "demo" / "README.md").read_text()
    found = re.findall(r"^\.venv/bin/nodeproxy (.*)$", page, re.MULTILINE)
    assert [line.split()[0] for line in found] == ["render", "run"]
    program = str(Path(sys.executable).with_name("nodeproxy"))
    assert "default/frontend" in pasted(f"{program} {found[0]}")
    assert "coming-soon" in pasted(f"{program} {found[1].replace('run', 'render', 1).removesuffix('&')}")
