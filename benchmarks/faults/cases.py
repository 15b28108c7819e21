"""The faults: each is drawn from a seed, done to a running federation, and undone."""

from __future__ import annotations

import base64
import random
import shutil
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key
from flwr.supercore.primitives.asymmetric import sign_message

from faults.disk import full
from faults.federation import NAMES, PATIENCE, Federation, make_keys
from faults.invariants import STOPPED, TERMINATED
from faults.link import header, post, with_header
from faults.processes import having_role, send, wait_for
from faults.simulation import Simulation

MOMENTS = ("joined with", "round 1/", "round 2/")
LATEST = 6.0  # seconds after the moment
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
PROCESSES = (
    "server", "server/superlink", "server/superexec", "server/serverapp",
    "client", "client/supernode", "client/superexec", "client/clientapp",
)  # fmt: skip
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


def signals(rng: random.Random, run: Federation | Simulation) -> str:
    """A signal to a random process."""
    place = rng.choice(RAY if isinstance(run, Simulation) else PROCESSES)
    number, name = rng.choice(SIGNALS), rng.choice(NAMES)
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
    told = f"{signal.Signals(number).name} to {place}"
    if number == signal.SIGSTOP:
        time.sleep(pause)
        send(pid, signal.SIGCONT)
        told += f" for {pause:.1f} s"
    return f"{told}, {when}"


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


def link(rng: random.Random, run: Federation) -> str:
    """The way to a client is cut, or stalls."""
    name, cut, seconds = rng.choice(NAMES), rng.random() < 0.5, rng.uniform(3, 30)
    when = wait_for_moment(rng, run)
    way = run.links[name]
    (way.cut if cut else way.stall)()
    time.sleep(seconds)
    way.mend()
    what = "cut" if cut else "stalled"
    return f"link of client {name} {what} for {seconds:.0f} s, {when}"


def disk(rng: random.Random, run: Federation) -> str:
    """No space is left for the run, the clients' state or temporary files."""
    which, seconds = rng.choice(("run", "state", "tmp")), rng.uniform(5, 25)
    when = wait_for_moment(rng, run)
    with full(run.folder / which):
        wait_for(lambda: run.server.code is not None, seconds)
    return f"disk of {which} full for {seconds:.0f} s, {when}"


def clock(rng: random.Random, run: Federation) -> str:
    """The clock of one side jumps, and is set right again."""
    side = rng.choice(("server", "a"))
    jump = rng.choice((-1, 1)) * rng.randrange(400, 90_000)
    seconds = rng.uniform(5, 25)
    when = wait_for_moment(rng, run)
    run.clocks[side].set(jump)
    wait_for(lambda: run.server.code is not None, seconds)
    run.clocks[side].set(0)
    who = "server" if side == "server" else f"client {side}"
    return f"clock of {who} {jump:+} s for {seconds:.0f} s, {when}"


def requests(rng: random.Random, run: Federation) -> str:
    """A client's recorded requests come again: as they were, expired, and with another's key."""
    way = rng.choice(("replayed", "expired", "signed by another"))
    when = wait_for_moment(rng, run)
    recorded = [r for r in [*run.links["a"].requests] if b"POST /v1/fleet/" in r[:40]]
    if not recorded:
        raise NotHitError("no request was recorded")
    chosen = rng.sample(recorded, min(len(recorded), 12))
    past = datetime.now(UTC) - timedelta(seconds=rng.randrange(400, 90_000))
    moment = past if way == "expired" else datetime.now(UTC)
    signer = {"expired": "a", "signed by another": "b"}.get(way)
    ca = run.security / "ca.crt"
    answers = [
        post(run.port, r if signer is None else _signed(r, run, signer, moment), ca) for r in chosen
    ]
    if signer is not None and set(answers) != {401}:
        run.problems.append(f"requests {way} are answered with {sorted(set(answers))}, not 401")
    if signer is not None and not wait_for(lambda: run.server.has("refused: "), 5):
        run.problems.append(f"the server says nothing of requests {way}")
    return f"{len(chosen)} requests {way} ({_counts(answers)}), {when}"


def _signed(request: bytes, run: Federation, signer: str, moment: datetime) -> bytes:
    """The request with this moment, signed by a client's real key."""
    data = (run.security / "bundles" / signer / "client.key").read_bytes()
    load = load_ssh_private_key if b"OPENSSH" in data else load_pem_private_key
    text = moment.isoformat()
    signature = base64.b64encode(sign_message(load(data, None), text.encode("ascii"))).decode()
    assert header(request, "flwr-timestamp")
    return with_header(with_header(request, "flwr-timestamp", text), "flwr-signature", signature)


def _counts(answers: list[int]) -> str:
    return ", ".join(f"{answers.count(each)} x {each}" for each in sorted(set(answers)))


def authority(rng: random.Random, run: Federation) -> str:
    """The server's CA is replaced while a run is on; the server is restarted, clients get it later.

    Until then each client says in a line that it does not trust this server any more.
    """
    when = wait_for_moment(rng, run)
    fresh = run.folder / "fresh"
    make_keys(fresh)
    for file in ("ca.key", "ca.crt", "server.key", "server.crt"):
        shutil.copy(fresh / file, run.security / file)
    run.forgiven |= {STOPPED}
    if (code := run.server.end()) not in (STOPPED, 0):
        run.problems.append(f"SIGTERM to the server: exit code {code} instead of 130")
    if code == 0:
        raise NotHitError("the run was over")
    run.start_server(f"resume={run.run / 'r'}")
    line = "does not vouch for"
    if not wait_for(lambda: all(c.has(line) for c in run.clients.values()), 90):
        run.problems.append("a client does not say that the server has another certificate")
    for name in NAMES:
        shutil.copy(run.security / "ca.crt", run.security / "bundles" / name / "ca.crt")
    return f"CA replaced and the server restarted, {when}"


FEDERATION: dict[str, Callable[[random.Random, Federation], str]] = {
    "signals": signals,
    "link": link,
    "disk": disk,
    "clock": clock,
    "requests": requests,
    "authority": authority,
    "private": signals,
}
KINDS = (*FEDERATION, "ray")


def kinds_in_turn(seed: int, only: list[str]) -> Callable[[int], str]:
    """The kind of every case by its number: all kinds come up, in an order that the seed draws."""
    kinds = only or [*KINDS, "signals", "ray"]  # what there is most of comes twice

    def kind(number: int) -> str:
        turn, place = divmod(number - 1, len(kinds))
        order = random.Random(f"{seed}, turn {turn}").sample(kinds, len(kinds))
        return order[place]

    return kind
