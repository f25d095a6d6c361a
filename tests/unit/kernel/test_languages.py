"""Whatever language the environment asks for: errors of the kernel are told apart by their English text."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nodeproxy import kernel

pytestmark = pytest.mark.usefixtures("namespace")

_PROGRAM = """
import json, locale
import nodeproxy.cli.main
from nodeproxy.kernel.errors import TransactionError
from nodeproxy.kernel.nft import Nft

nft = Nft()
nft.run("add table ip t\\nadd chain ip t c\\nadd map ip t m { type mark : verdict ; elements = { 1 : goto c } ; }\\n")
found = {}
for text in ("delete chain ip t c", "delete chain ip t nothing"):
    try:
        nft.run(text)
    except TransactionError as error:
        found[text] = [type(error).__name__, error.reason]
print(json.dumps([found, locale.setlocale(locale.LC_MESSAGES, None)]))
"""


@pytest.mark.parametrize("language", ["de_DE.UTF-8", "C.UTF-8"])
def test_busy_is_recognised_in_every_language(language: str) -> None:
    """Nothing may take the environment's language for messages: then the C library would translate them."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(kernel.__file__).parents[2]),
        "LANG": language,
        "LC_ALL": language,
        "LANGUAGE": "de",
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found, messages = json.loads(done.stdout)
    assert found["delete chain ip t c"][0] == "BusyError"
    assert "Device or resource busy" in found["delete chain ip t c"][1]
    assert found["delete chain ip t nothing"][0] == "TransactionError"
    assert messages == "C", "the language of messages is what it is at the start of every C program"
