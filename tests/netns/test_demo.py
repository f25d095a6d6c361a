"""The demo does what it says."""

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


def test_demo_succeeds() -> None:
    """Every Service is connected to, traffic leaves the pod that dies, rules are shown, and the exit code is 0."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "demo" / "demo.py")], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    before, _, after = done.stdout.partition("A pod dies: frontend-2")
    shown = {line.split()[0] for line in before.splitlines() if line.strip()}
    assert shown >= SERVICES
    rows = [line for line in after.splitlines() if line.startswith("  frontend")]
    assert len([row for row in rows if "/tcp" in row]) == 4
    assert all("-2:" not in row for row in rows)
    assert "dnat" in after
    assert "FAILED" not in done.stdout
