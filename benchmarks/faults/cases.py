"""The faults: each is drawn from a seed, done to a running federation, and undone.

Every function takes the draws, the run, and which fault of its kind to make; it returns in words
what it did.
"""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key
from flwr.supercore.primitives.asymmetric import sign_message
from proc import descendants

from faults.disk import full
from faults.federation import HOSTILE, NAMES, PATIENCE, ROUNDS, Federation, make_keys
from faults.hostile_client import REFUSED, TAKEN
from faults.hostile_files import ENCODERS, IMAGES, RUNS
from faults.hostile_server import ATTACKS, IGNORED
from faults.invariants import STOPPED, TERMINATED
from faults.link import header, post, with_header
from faults.processes import Command, having_role, send, wait_for
from faults.simulation import Simulation
from orchestra_flwr.federation.messages.failures import Failure
from orchestra_flwr.federation.messages.fields import CONFIG

MOMENTS = ("joined with", "round 1/", "round 2/")
LATEST = 6.0  # seconds after the moment
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
PROCESSES = (
    "server", "server/superlink", "server/app", "client", "client/supernode",
)  # fmt: skip
LATE = {"hanging": "SIGSTOP to client", "vanished": "SIGKILL to client"}
RAY = ("simulation", "simulation/worker", "simulation/raylet", "simulation/gcs")


class NotHitError(RuntimeError):
    """What was to be disturbed did not come about."""


def wait_for_moment(rng: random.Random, run: Federation | Simulation) -> str:
    """Waits for a random moment of a run; it in words."""
    text, delay = rng.choice(MOMENTS[1:] if isinstance(run, Simulation) else MOMENTS), 0.0
    delay = rng.uniform(0, LATEST)
    if not wait_for(lambda: run.server.has(text) or run.server.code is not None, PATIENCE):
        raise NotHitError(f"no {text!r} within {PATIENCE} s")
    time.sleep(delay)
    return f"{delay:.1f} s after {text.strip('/')!r}"


def signals(rng: random.Random, run: Federation | Simulation, which: str) -> str:
    """A signal to a process."""
    signal_name, _, place = which.partition(" to ")
    number, name = signal.Signals[signal_name], rng.choice(NAMES)
    pause = rng.uniform(2, 12)
    when = wait_for_moment(rng, run)
    side, _, role = place.partition("/")
    root = run.server
    if side == "client":
        assert isinstance(run, Federation)
        root, place = run.clients[name], place.replace("client", f"client {name}", 1)
    if role:
        wait_for(lambda: having_role(root.pid, role) or run.server.code is not None, 60, 0.02)
    pids = having_role(root.pid, role) if role else [root.pid]
    if not pids or root.code is not None:
        raise NotHitError(f"no {place} {when}")
    _forgive(run, side, role, number, name)
    pid = rng.choice(pids)
    send(pid, number)
    event = f"{signal.Signals(number).name} to {place}"
    if number == signal.SIGSTOP:
        time.sleep(pause)
        send(pid, signal.SIGCONT)
        event += f" for {pause:.1f} s"
    return f"{event}, {when}"


def _forgive(
    run: Federation | Simulation, side: str, role: str, number: signal.Signals, name: str
) -> None:
    """What such a signal explains."""
    if role or number == signal.SIGSTOP:
        return
    if side == "client" and isinstance(run, Federation):
        run.killed.add(name)
    else:
        killed = number == signal.SIGKILL
        run.forgiven |= {-number} if killed else {STOPPED, TERMINATED}


def machines(rng: random.Random, run: Simulation, which: str) -> str:
    """Nodes of a Ray cluster are lost with all their processes, or asleep for a while."""
    place, pause = rng.randint(1, 2), rng.uniform(2, 40)
    when = wait_for_moment(rng, run)
    chosen = run.nodes[1:] if which == "all lost" else [run.nodes[place]]
    pids = [pid for node in chosen for pid in (node.pid, *descendants(node.pid))]
    if run.server.code is not None:
        raise NotHitError("the run was over")
    for pid in pids:
        send(pid, signal.SIGSTOP if which == "asleep" else signal.SIGKILL)
    if which == "replaced":
        run.add_node()
    if which != "asleep":
        return f"{len(chosen)} nodes {which}, {when}"
    time.sleep(pause)
    for pid in pids:
        send(pid, signal.SIGCONT)
    return f"a node asleep for {pause:.0f} s, {when}"


def link(rng: random.Random, run: Federation, which: str) -> str:
    """The way to a client is cut, or stalls."""
    name, seconds = rng.choice(NAMES), rng.uniform(3, 30)
    when = wait_for_moment(rng, run)
    way = run.links[name]
    (way.cut if which == "cut" else way.stall)()
    time.sleep(seconds)
    way.mend()
    return f"link of client {name} {which} for {seconds:.0f} s, {when}"


def disk(rng: random.Random, run: Federation, which: str) -> str:
    """No space is left for the run, the clients' state or temporary files."""
    seconds = rng.uniform(5, 25)
    when = wait_for_moment(rng, run)
    with full(run.folder / which):
        wait_for(lambda: run.server.code is not None, seconds)
    return f"disk of {which} full for {seconds:.0f} s, {when}"


def clock(rng: random.Random, run: Federation, which: str) -> str:
    """The clock of one side jumps, and is set right again."""
    side, _, way = which.partition(" ")
    jump = {"ahead": 1, "back": -1}[way] * rng.randrange(400, 90_000)
    seconds = rng.uniform(5, 25)
    when = wait_for_moment(rng, run)
    run.clocks[side].set(jump)
    wait_for(lambda: run.server.code is not None, seconds)
    run.clocks[side].set(0)
    who = "server" if side == "server" else f"client {side}"
    return f"clock of {who} {jump:+} s for {seconds:.0f} s, {when}"


def requests(rng: random.Random, run: Federation, which: str) -> str:
    """A client's recorded requests come again: as they were, expired, or wrongly signed."""
    when = wait_for_moment(rng, run)
    recorded = [r for r in [*run.links["a"].requests] if b"POST /v1/fleet/" in r[:40]]
    if not recorded:
        raise NotHitError("no request was recorded")
    chosen = rng.sample(recorded, min(len(recorded), 12))
    ca = run.security / "ca.crt"
    answers = [post(run.port, _as_asked(which, request, run, rng), ca) for request in chosen]
    if which != "replayed" and set(answers) != {401}:
        run.problems.append(f"requests {which} are answered with {sorted(set(answers))}, not 401")
    if which != "replayed" and not wait_for(lambda: run.server.has("refused: "), 5):
        run.problems.append(f"the server says nothing of requests {which}")
    return f"{len(chosen)} requests {which} ({_counts(answers)}), {when}"


def _as_asked(which: str, request: bytes, run: Federation, rng: random.Random) -> bytes:
    """A recorded request as it comes again."""
    now = datetime.now(UTC)
    if which == "replayed":
        return request
    if which == "expired":
        return _signed(request, run, "a", now - timedelta(seconds=rng.randrange(400, 90_000)))
    if which == "signed by another":
        return _signed(request, run, "b", now)
    fresh = _signed(request, run, "a", now)  # right but for one bit
    signature = bytearray(base64.b64decode(header(fresh, "flwr-signature") or ""))
    signature[rng.randrange(len(signature))] ^= 1
    return with_header(fresh, "flwr-signature", base64.b64encode(signature).decode())


def _signed(request: bytes, run: Federation, signer: str, moment: datetime) -> bytes:
    """The request with this moment, signed by a client's real key."""
    data = (run.security / "bundles" / signer / "client.key").read_bytes()
    load = load_ssh_private_key if b"OPENSSH" in data else load_pem_private_key
    text = moment.isoformat()
    signature = base64.b64encode(sign_message(load(data, None), text.encode("ascii"))).decode()
    assert header(request, "flwr-timestamp")
    return with_header(with_header(request, "flwr-timestamp", text), "flwr-signature", signature)


def _counts(answers: list[int]) -> str:
    return ", ".join(f"{answers.count(status)} x {status}" for status in sorted(set(answers)))


def authority(rng: random.Random, run: Federation, which: str) -> str:
    """The server's CA is replaced while a run is on; the server is restarted, clients get it later.

    Until then each client says in a line that it does not trust this server any more.
    """
    when = wait_for_moment(rng, run)
    fresh = run.folder / "fresh"
    make_keys(fresh)
    for file in ("ca.key", "ca.crt", "server.key", "server.crt"):
        shutil.copy(fresh / file, run.security / file)
    run.forgiven |= {TERMINATED}
    if (code := run.server.end()) not in (TERMINATED, 0):
        run.problems.append(f"SIGTERM to the server: exit code {code} instead of 143")
    if code == 0:
        raise NotHitError("the run was over")
    run.start_server(f"resume={run.run / 'r'}")
    line = "does not vouch for"
    if not wait_for(lambda: all(c.has(line) for c in run.clients.values()), 90):
        run.problems.append("a client does not say that the server has another certificate")
    for name in NAMES:
        shutil.copy(run.security / "ca.crt", run.security / "bundles" / name / "ca.crt")
    return f"CA {which} and the server restarted, {when}"


def hostile(rng: random.Random, run: Federation, which: str) -> str:
    """Client b sends something absurd in some rounds, as it was drawn before the start."""
    if not wait_for(lambda: run.server.code is not None, PATIENCE):
        raise NotHitError(f"the run did not end within {PATIENCE} s")
    rounds = ", ".join(run.hostile)
    if not all(run.clients[HOSTILE].has(f"hostile: {what}") for what in run.hostile.values()):
        raise NotHitError(f"client {HOSTILE} was not asked in rounds {rounds}")
    return f"client {HOSTILE} sends {which} in rounds {rounds}"


def hostile_rounds(rng: random.Random, which: str) -> dict[str, str]:
    """In which rounds client b sends something absurd; there is at least one."""
    rounds = rng.sample(range(1, ROUNDS + 1), rng.randint(1, ROUNDS))
    return {str(number): which for number in sorted(rounds)}


def server(rng: random.Random, run: Federation, which: str) -> str:
    """The server's operator asks client a for more than an update, before the first round."""
    client = run.clients["a"]
    if not wait_for(lambda: client.has("takes part with"), PATIENCE):
        raise NotHitError("client a did not come")
    time.sleep(rng.uniform(0, 3))
    (link,) = run.tmp.glob("orchestra-*/link")
    program = ["benchmarks/faults/hostile_server.py", link, run.security / "ca.crt"]
    operator = Command([*program, which], run.logs / "operator.log", run.environment("server"))
    wait_for(lambda: operator.code is not None, PATIENCE)
    if operator.end(5) != 0 or not (answers := json.loads(operator.lines[-1])):
        raise NotHitError(f"no answer to {which}: {(operator.lines or ['no output'])[-1]}")
    for answer in answers:
        if which in IGNORED:
            is_right = isinstance(answer, dict) and os.environ["HOME"] not in str(answer)
        elif isinstance(answer, list):
            is_right = Failure.of(answer[0]) is not None
        else:
            is_right = "refusal" in answer.get(CONFIG, {})
        if not is_right:
            run.problems.append(f"{which} is answered with {str(answer)[:200]}")
    run.start_client("b")
    return f"the server asks for {which}: {answers}"


def image(rng: random.Random, run: Federation, which: str) -> str:
    """A file that is no image lies among those of client a from the start."""
    if not wait_for(lambda: run.server.code is not None, PATIENCE):
        raise NotHitError(f"the run did not end within {PATIENCE} s")
    return f"{which} among the images of client a"


def late(rng: random.Random, run: Federation, which: str) -> str:
    """A client hangs, is gone, or cannot be reached, in rounds that end with the first reply."""
    return link(rng, run, "stalled") if which == "asleep" else signals(rng, run, LATE[which])


def _signals_to(places: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{number.name} to {place}" for place in places for number in SIGNALS)


FEDERATION: dict[str, Callable[[random.Random, Federation, str], str]] = {
    "signals": signals,
    "link": link,
    "disk": disk,
    "clock": clock,
    "requests": requests,
    "authority": authority,
    "private": signals,
    "late": late,
    "hostile": hostile,
    "server": server,
    "image": image,
}
# All faults of each kind, by the words that their functions take.
FAULTS: dict[str, tuple[str, ...]] = {
    "signals": _signals_to(PROCESSES),
    "link": ("cut", "stalled"),
    "disk": ("run", "state", "tmp"),
    "clock": ("server ahead", "server back", "a ahead", "a back"),
    "requests": ("replayed", "expired", "signed by another", "with an altered signature"),
    "authority": ("replaced",),
    "private": _signals_to(PROCESSES),
    "late": (*LATE, "asleep"),
    "hostile": (*REFUSED, *TAKEN),
    "server": tuple(ATTACKS),
    "image": tuple(IMAGES),
    "file": (*RUNS, *ENCODERS),
    "ray": _signals_to(RAY),
    "cluster": ("lost", "replaced", "all lost", "asleep"),
}
TURN = (*FAULTS, "signals", "ray")  # the kinds that have most faults come twice


def faults_in_turn(seed: int, only: Sequence[str]) -> Callable[[int], tuple[str, str]]:
    """Kind and fault of every case by its number, in an order that the seed draws.

    All kinds come up in each turn, and all faults of a kind before one comes again.

    Args:
        seed: of the order.
        only: kinds, each with or without `:` and a part of its faults' words; () means all.
    """
    chosen = tuple(only) or TURN

    def fault(number: int) -> tuple[str, str]:
        entries = [_drawn(seed, "turn", (case - 1) // len(chosen), chosen)[(case - 1) % len(chosen)]
                   for case in range(1, number + 1)]  # fmt: skip
        entry = entries[-1]
        kind, _, part = entry.partition(":")
        deck = [which for which in FAULTS[kind] if part in which]
        again, place = divmod(entries.count(entry) - 1, len(deck))
        return kind, _drawn(seed, entry, again, deck)[place]

    return fault


def _drawn(seed: int, what: str, turn: int, things: Sequence[str]) -> list[str]:
    return random.Random(f"{seed}, {what} {turn}").sample(things, len(things))
