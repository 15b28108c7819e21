"""What the gate's HTTP client costs, on this machine's loopback with TLS.

    python benchmarks/gate_client.py

A stand-in for the SuperLink (uvicorn with TLS, answers at once), the gate and this load generator
are three processes. `alone` sends one request after the other, `together` from 32 connections at
a time. For each client behind the gate: milliseconds a request (median alone, mean together) and
milliseconds of processor time that the gate's process spends on one. In results/gate_client.json,
`own` is the client on h11 that httpx replaced, measured in the same run.
"""

import argparse
import contextlib
import http.client
import os
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from common import free_port, is_listening, table, write
from faults.federation import make_keys
from proc import cpu_seconds

from orchestra_flwr.deployment.gate import Gate, listening
from orchestra_flwr.deployment.gate.upstream import (
    RESPONSE_SECONDS,
    Headers,
    Upstream,
    UpstreamResponse,
)
from orchestra_flwr.deployment.keys.server_keys import ServerFiles
from orchestra_flwr.deployment.processes.child import accepts

CLIENTS = ("as it is", "one AsyncClient")
SMALL, LARGE = 300, 5 * 1024**2  # bytes of a pull-messages, and of a push-object
CONNECTIONS = 32


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", choices=["superlink", "gate"])
    parser.add_argument("--client", choices=CLIENTS)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    if arguments.serve == "superlink":
        superlink(arguments.folder)
    elif arguments.serve == "gate":
        gate(arguments.folder, arguments.client)
    else:
        measure(arguments.rounds)


def superlink(folder: Path) -> None:
    import uvicorn

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass
        head = [(b"content-type", b"application/protobuf"), (b"content-length", b"200")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": bytes(200)})

    uvicorn.run(
        answer,
        uds=str(folder / "link"),
        ssl_certfile=folder / "server.crt",
        ssl_keyfile=folder / "server.key",
        lifespan="off",
        log_config=None,
        access_log=False,
    )


def gate(folder: Path, client: str) -> None:
    if client == "one AsyncClient":
        listening.Upstream = OneClient  # type: ignore[misc]
    tls = ServerFiles.of(folder)
    with Gate(
        "127.0.0.1",
        int(os.environ["PORT"]),
        folder / "link",
        tls=tls,
        names=lambda: {b"": "bench"},
        report=print,
    ):
        threading.Event().wait()


class OneClient(Upstream):
    """The same with one httpx.AsyncClient for all connections."""

    def __init__(self, socket: Path, tls: ssl.SSLContext | None) -> None:
        super().__init__(socket, tls)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        transport = httpx.AsyncHTTPTransport(verify=self._tls, limits=limits, uds=str(socket))
        self._client = httpx.AsyncClient(transport=transport, timeout=RESPONSE_SECONDS)

    @contextlib.asynccontextmanager
    async def request(
        self, method: str, path: str, headers: Headers, body: AsyncIterator[bytes]
    ) -> AsyncIterator[UpstreamResponse]:
        url = self._origin + path
        request = httpx.Request(method, url, headers=list(headers), content=body)
        response = await self._client.send(request, stream=True)
        try:
            names = {name.lower(): value for name, value in response.headers.raw}
            yield UpstreamResponse(response.status_code, names, response.aiter_raw())
        finally:
            await response.aclose()


@contextlib.contextmanager
def serving(*arguments: str, socket: Path | None = None) -> Iterator[tuple[int, int]]:
    """Starts this script as a server; its port and its process id."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, __file__, *arguments], env={**os.environ, "PORT": str(port)}
    )
    try:
        while not (accepts(socket) if socket else is_listening(port)):
            time.sleep(0.05)
        yield port, process.pid
    finally:
        process.kill()
        process.wait()


def measure(rounds: int) -> None:
    with contextlib.ExitStack() as stack:
        folder = f"{stack.enter_context(tempfile.TemporaryDirectory())}/security"
        make_keys(Path(folder))
        tls = ssl.create_default_context(cafile=f"{folder}/ca.crt")
        link = Path(folder) / "link"
        stack.enter_context(serving("--serve", "superlink", "--folder", folder, socket=link))
        common = ["--serve", "gate", "--folder", folder]
        gates = {name: stack.enter_context(serving(*common, "--client", name)) for name in CLIENTS}
        cases: dict[str, Callable[[int], float]] = {
            "small alone": lambda port: alone(port, tls, "pull-messages", SMALL, 300),
            "small together": lambda port: together(port, tls, "pull-messages", SMALL, 40),
            "large alone": lambda port: alone(port, tls, "push-object", LARGE, 10),
        }
        result: dict[str, Any] = {}
        for case, task in cases.items():
            times: dict[str, list[tuple[float, float]]] = {name: [] for name in CLIENTS}
            for turn in range(rounds + 1):
                for name, (port, pid) in gates.items():
                    before = cpu_seconds(pid)
                    took = task(port)
                    count = {"small alone": 300, "large alone": 10}.get(case, 40 * CONNECTIONS)
                    spent = (cpu_seconds(pid) - before) / count
                    if turn:
                        times[name].append((1e3 * took, 1e3 * spent))
            result[case] = {
                name: {
                    "ms": round(statistics.median(t for t, _ in values), 3),
                    "gate_cpu_ms": round(statistics.median(c for _, c in values), 3),
                }
                for name, values in times.items()
            }
    rows: list[tuple[object, ...]] = []
    for case, by_name in result.items():
        base = by_name["as it is"]["ms"]
        for name, medians in by_name.items():
            rows.append(
                (case, name, medians["ms"], f"{medians['ms'] / base:.2f}", medians["gate_cpu_ms"])
            )
    table(("request", "client", "ms", "ratio", "gate's processor ms"), rows)
    write("gate_client", result)


def connect(port: int, tls: ssl.SSLContext) -> http.client.HTTPSConnection:
    return http.client.HTTPSConnection("127.0.0.1", port, context=tls)


def send(connection: http.client.HTTPConnection, method: str, body: bytes) -> float:
    started = time.perf_counter()
    connection.request("POST", f"/v1/fleet/{method}", body, {"flwr-public-key": ""})
    response = connection.getresponse()
    response.read()
    assert response.status == 200, response.status
    return time.perf_counter() - started


def alone(port: int, tls: ssl.SSLContext, method: str, size: int, count: int) -> float:
    """Median seconds of a request."""
    with contextlib.closing(connect(port, tls)) as connection:
        return statistics.median(send(connection, method, bytes(size)) for _ in range(count))


def together(port: int, tls: ssl.SSLContext, method: str, size: int, count: int) -> float:
    """Mean seconds of a request, when all connections send as fast as they can."""

    def work() -> None:
        with contextlib.closing(connect(port, tls)) as connection:
            for _ in range(count):
                send(connection, method, bytes(size))

    started = time.perf_counter()
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        for done in [pool.submit(work) for _ in range(CONNECTIONS)]:
            done.result()
    return (time.perf_counter() - started) / (count * CONNECTIONS)


if __name__ == "__main__":
    main()
