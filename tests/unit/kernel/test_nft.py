"""libnftables against a real kernel: every refusal is told apart, and names who is at fault."""

import ctypes
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from netns.namespaces import CommandError, Namespace
from nodeproxy.kernel.errors import (
    BusyError,
    OutcomeUnknownError,
    PermissionDeniedError,
    TooLongError,
    TransactionError,
)
from nodeproxy.kernel.nft import Nft
from nodeproxy.kernel.support import deletes_freely

pytestmark = pytest.mark.usefixtures("namespace")

BASE = (
    "add table ip t\nadd chain ip t c\nadd map ip t m { type inet_service : verdict ; }\n"
    "add element ip t m { 80 : goto c }\n"
)
CREATED = "add table ip t\nadd chain ip t d\n"


@pytest.fixture
def nft() -> Nft:
    found = Nft()
    found.run(BASE)
    return found


REFUSED = {
    "missing chain": ("delete chain ip t nope # ns/web:http\n", "No such file", "delete chain ip t nope"),
    "missing element": (
        "delete element ip t m {\n80, # ns/other\n81, # ns/web:http\n}\n",
        "No such file",
        "81,",
    ),
    "chain that comes too late": (
        "add element ip t m { 81 : goto late } # ns/web:http\nadd chain ip t late\n",
        "No such file",
        "add element ip t m { 81 : goto late }",
    ),
    "element with another verdict": (
        "add element ip t m {\n81 : goto c, # ns/other\n80 : goto d, # ns/web:http\n82 : goto d, # ns/third\n}\n",
        "File exists",
        "80 : goto d,",
    ),
    "element that leads nowhere": (
        "add element ip t m {\n81 : goto c, # ns/other\n83 : goto nope, # ns/web:http\n82 : goto d, # ns/third\n}\n",
        "No such file",
        "83 : goto nope,",
    ),
    "unknown words": ("add rule ip t d no such words # ns/web:http\n", "", "add rule ip t d no such words"),
    "syntax": ("add rule ip t d ip daddr } # ns/web:http\n", "syntax error", "add rule ip t d ip daddr }"),
    "comment of a rule": (
        f'add rule ip t d accept comment "{"x" * 129}" # ns/web:http\n',
        "comment too long",
        f'add rule ip t d accept comment "{"x" * 129}"',
    ),
    "comment of an element": (
        f'add element ip t m {{\n81 : goto c, # ns/other\n83 comment "{"x" * 129}" : goto c, # ns/web:http\n}}\n',
        "comment too long",
        f'83 comment "{"x" * 129}" : goto c,',
    ),
    "name of a chain": (f"add chain ip t {'d' * 256} # ns/web:http\n", "out of range", f"add chain ip t {'d' * 256}"),
    "hook of a chain that has none": (
        "add chain ip t c { type filter hook input priority 0 ; } # ns/web:http\n",
        "File exists",
        "add chain ip t c { type filter hook input priority 0 ; }",
    ),
    "missing set": (
        "add rule ip t d ip saddr @nope accept # ns/web:http\n",
        "",
        "add rule ip t d ip saddr @nope accept",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_statement_and_its_owner_are_named(nft: Nft, namespace: Namespace, case: str) -> None:
    """Also when the statement stands in the middle of a list of elements; and nothing of the transaction is applied."""
    text, reason, statement = REFUSED[case]
    with pytest.raises(TransactionError) as caught:
        nft.run(CREATED + text)
    error = caught.value
    assert type(error) is TransactionError
    assert (error.owner, error.statement) == ("ns/web:http", statement)
    assert reason in error.reason
    assert "\n" not in error.reason
    assert str(error) == f"ns/web:http: {error.reason}"
    with pytest.raises(CommandError):
        namespace.run("nft", "list", "chain", "ip", "t", "d")


def test_all_refused_statements_are_named_at_once(nft: Nft) -> None:
    with pytest.raises(TransactionError) as caught:
        nft.run(
            CREATED
            + "add rule ip t d goto nope # ns/a\nadd rule ip t d accept # ns/b\nadd rule ip t d goto no # ns/c\n"
        )
    error = caught.value
    assert [refusal.owner for refusal in error.refusals] == ["ns/a", "ns/c"]
    assert (error.owner, error.statement) == ("ns/a", "add rule ip t d goto nope")
    assert error.refusals[1].statement == "add rule ip t d goto no"


def test_statement_that_could_not_be_read_may_be_the_one_before(nft: Nft) -> None:
    """nft points at the line in which it notices; whose the line before it is is said as well."""
    with pytest.raises(TransactionError) as caught:
        nft.run(CREATED + "add rule ip t d meta mark { 1, 2 # ns/a\nadd rule ip t d accept # ns/b\n")
    (refusal,) = caught.value.refusals
    assert (refusal.owner, refusal.before) == ("ns/b", "ns/a")


@pytest.mark.parametrize(
    "form",
    ["add element ip t {} {{\n{}}}\n", "add map ip t {} {{ type inet_service : verdict ; elements = {{\n{}}} ; }}\n"],
)
def test_refusal_of_the_only_element_of_a_statement_is_its_owners(nft: Nft, form: str) -> None:
    """The kernel names the statement, if not the element: here a chain that may not be reached from there."""
    text = "add chain ip t base { type nat hook output priority 0 ; }\nadd chain ip t masq\n"
    nft.run(text + "add rule ip t masq masquerade\nadd rule ip t base tcp dport vmap @m\n")
    nft.run("add map ip t other { type inet_service : verdict ; }\n")  # libnftables 1.1 makes one of two for one map
    with pytest.raises(TransactionError, match="not supported") as caught:
        nft.run(form.format("other", "81 : goto c, # ns/other\n") + form.format("m", "82 : goto masq, # ns/web\n"))
    assert (caught.value.owner, caught.value.statement) == ("ns/web", "82 : goto masq,")


def test_what_is_no_longer_busy_when_it_is_looked_at_is_applied(
    nft: Nft, namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, once = [5], Nft._run_once

    def busy(self: Nft, text: str) -> None:
        left[0] -= 1
        if left[0] > 0:
            raise BusyError("Device or resource busy")
        once(self, text)

    monkeypatch.setattr(Nft, "_run_once", busy)
    nft.run(CREATED)
    assert left == [0]
    namespace.run("nft", "list", "chain", "ip", "t", "d")


def test_statement_without_an_owner_is_named_all_the_same(nft: Nft) -> None:
    with pytest.raises(TransactionError) as caught:
        nft.run("delete chain ip t nope\n")
    assert (caught.value.owner, caught.value.statement) == ("", "delete chain ip t nope")


def test_busy_chain_is_told_apart_after_a_few_tries_and_named(nft: Nft) -> None:
    """A chain that a map names can't be deleted; that may pass, so it is an error of its own."""
    with pytest.raises(BusyError, match="Device or resource busy") as caught:
        nft.run("add chain ip t d\ndelete chain ip t c # ns/web:http\n")
    assert caught.value.owner == "ns/web:http"
    assert caught.value.statement == "delete chain ip t c"


def test_what_is_busy_for_a_moment_only_succeeds(nft: Nft, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []
    once = Nft._run_once

    def busy_twice(self: Nft, text: str) -> None:
        tries.append(text)
        if len(tries) < 3:
            raise BusyError("Device or resource busy")
        once(self, text)

    monkeypatch.setattr(Nft, "_run_once", busy_twice)
    nft.run(CREATED)
    assert len(tries) == 3


class Answering:
    """A libnftables context that answers everything in one way."""

    def __init__(self, error: str) -> None:
        self.error = error

    def cmd(self, _: str) -> tuple[int, str, str]:
        return -1, "", self.error

    cmd_from_file = cmd

    def set_dry_run(self, _: bool) -> None:
        pass

    def set_json_output(self, _: bool) -> None:
        pass


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("netlink: Error: Could not process rule: Message too long\n", TooLongError),
        ("netlink: Error: Could not process rule: No buffer space available\n", OutcomeUnknownError),
        ("netlink: Error: Could not process rule: Interrupted system call\n", BusyError),
        ("netlink: Error: Could not process rule: Resource temporarily unavailable\n", BusyError),
        ("internal:0:0-0: Error: Could not process rule: Operation not permitted\n", PermissionDeniedError),
        ("internal:0:0-0: Error: Could not process rule: Operation not supported\n", TransactionError),
        ("", TransactionError),
    ],
)
def test_answers_are_told_apart(monkeypatch: pytest.MonkeyPatch, message: str, kind: type[Exception]) -> None:
    nft = Nft()
    monkeypatch.setattr(nft, "_ours", lambda: Answering(message))
    with pytest.raises(kind) as caught:
        nft.run("add table ip t\n")
    assert type(caught.value) is kind
    if message and isinstance(caught.value, TransactionError):
        assert caught.value.reason in message
        assert caught.value.reason.startswith("Could not process rule")


def test_valid_command_works_after_a_refused_one(nft: Nft) -> None:
    """The context is a new one after every error, as one command that failed may spoil those after it (B21)."""
    for text, _, _ in REFUSED.values():
        before = nft._context
        with pytest.raises(TransactionError):
            nft.run(CREATED + text)
        assert nft._context is not before
        nft.run(CREATED + "delete chain ip t d\n")
        assert nft.version()


def test_context_is_kept_while_nothing_fails(nft: Nft) -> None:
    before = nft._context
    nft.run(CREATED)
    nft.check("add table ip u\n")
    assert nft.version()
    assert nft._context is before


def test_what_is_remembered_of_the_kernel_is_given_back(namespace: Namespace) -> None:
    """All the chains that 1.0.6 reads; and nothing that has to work afterwards."""
    nft, ports = Nft(), list[int]()
    nft.rest()
    nft.follow_port(ports.append)
    nft.run("add table ip t\n" + "".join(f"add chain ip t chain-{number}\n" for number in range(20_000)))
    nft.run("add set ip t s { type inet_service ; }\nadd element ip t s { 80 }\n")
    working = _resident()
    nft.rest()
    assert deletes_freely(nft.version()) or _resident() < working - 10_000
    nft.run("delete element ip t s { 80 }\nadd element ip t s { 80 }\n")
    assert "80" in namespace.run("nft", "list", "set", "ip", "t", "s")
    assert len(ports) == 1


def _resident() -> int:
    """KiB of memory in use."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    found = re.search(r"^VmRSS:\s+(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1])


def test_context_is_replaced_when_asking_for_the_version_fails(nft: Nft, monkeypatch: pytest.MonkeyPatch) -> None:
    spoilt = Answering("Error: Operation not permitted")
    monkeypatch.setattr(nft, "_context", spoilt)
    assert nft.version() == ""
    assert nft.version() != ""


def test_second_thread_is_refused(nft: Nft) -> None:
    """A context that two threads use crashes the process, so it is not let come to that."""
    caught: list[BaseException] = []

    def use() -> None:
        try:
            nft.run(CREATED)
        except AssertionError as error:
            caught.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join(5)
    assert len(caught) == 1
    nft.run(CREATED)


def test_check_applies_nothing(nft: Nft, namespace: Namespace) -> None:
    nft.check("add table ip u\n")
    with pytest.raises(CommandError):
        namespace.run("nft", "list", "table", "ip", "u")
    nft.run("add table ip u\n")
    namespace.run("nft", "list", "table", "ip", "u")


def test_check_names_what_would_be_refused(nft: Nft) -> None:
    with pytest.raises(TransactionError) as caught:
        nft.check(CREATED + "delete chain ip t nope # ns/web\n")
    assert (caught.value.owner, caught.value.statement) == ("ns/web", "delete chain ip t nope")


WITHOUT = """
import sys
sys.path.insert(0, {operator!r})
from nodeproxy.kernel.errors import PermissionDeniedError
from nodeproxy.kernel.nft import Nft
from nodeproxy.kernel.readback import read_back
from nodeproxy.kernel.support import check_support
from nodeproxy.kube.addresses import Family
from nodeproxy.ruleset.render import RenderContext, Renderer
renderer = Renderer(RenderContext(Family.IPV4))
base = renderer.base()
calls = (
    lambda: Nft().run("add table ip t\\n"),
    lambda: Nft().check("add table ip t\\n"),
    lambda: check_support(Nft(), renderer.probe()),
    lambda: read_back(Family.IPV4, base),
)
for call in calls:
    try:
        call()
    except PermissionDeniedError as error:
        print(error)
"""


def test_missing_capability_is_an_error_of_its_own_that_names_it(request: pytest.FixtureRequest) -> None:
    program = WITHOUT.format(operator=str(request.config.rootpath / "operator"))
    words = ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin", sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    assert all("CAP_NET_ADMIN" in line for line in lines)


def test_error_about_messages_of_many_elements_says_what_is_wrong(nft: Nft) -> None:
    """The kernel must not send them back with the error: 64 KiB each, they overflow the receive buffer."""
    nft.run("add chain ip t base { type filter hook input priority 0 ; }\nadd chain ip t hub\nadd chain ip t d\n")
    nft.run("add rule ip t hub tcp dport vmap @m\nadd rule ip t base goto hub\n")
    nft.run("add rule ip t d goto hub\n")  # a loop, once an element of the map leads there
    long_name = "c" * 200
    nft.run(f"add chain ip t {long_name}\n")
    elements = [f"{port} : goto {long_name}," for port in range(1000, 6000)]
    with pytest.raises(TransactionError, match="Too many links") as caught:
        nft.run("\n".join(["add element ip t m {", "999 : goto d,", *elements, "}", ""]))
    assert not isinstance(caught.value, OutcomeUnknownError | TooLongError)
