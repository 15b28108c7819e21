"""A pipe between two processes: whole objects, and an end that is noticed."""

import os
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe

import pytest

from orchestra_flwr.deployment.channel.json_pipe import Channel, ChannelClosedError


@pytest.fixture
def ends():
    one, other = map(Channel, Pipe())
    with one, other:
        yield one, other


def test_objects_arrive_whole_and_in_order(ends):
    one, other = ends
    large = {"n": 1, "text": 1_000_000 * "ü"}  # more than a pipe buffers
    sender = threading.Thread(target=lambda: [one.send(large), one.send({"n": 2})])
    sender.start()
    assert other.receive() == large and other.receive() == {"n": 2}
    sender.join()
    other.send({"back": None})
    assert one.ready(5)
    assert one.receive() == {"back": None}
    assert not one.ready(0)


def test_an_end_that_goes_is_noticed_also_in_the_middle(ends):
    one, other = ends
    os.write(one._connection.fileno(), b"\0\0")  # a part of a length
    one.__exit__()
    assert other.ready(5)
    with pytest.raises(ChannelClosedError, match="is closed"):
        other.receive()
    with pytest.raises(ChannelClosedError, match="is closed"):
        for _ in range(2):
            other.send({"text": (1 << 20) * "x"})


def test_a_process_may_have_thousands_of_connections(request):
    """The gate's clients are connections of the same process."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, limits[1]))
    request.addfinalizer(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    request.addfinalizer(lambda: [os.close(file) for file in files])
    one, other = map(Channel, Pipe())
    with one, other:
        assert not other.ready(0)
        one.send({"n": 1})
        assert other.ready(5) and other.receive() == {"n": 1}


def test_several_threads_may_send(ends):
    """The server's app reports its progress, and another thread that the SuperLink is silent."""
    one, other = ends
    events = [{"number": number, "text": "x" * 100_000} for number in range(40)]
    with ThreadPoolExecutor(4) as pool:
        sent = [pool.submit(one.send, event) for event in events]
        received = [other.receive() for _ in events]
    assert sorted(received, key=lambda event: event["number"]) == events
    assert all(future.exception() is None for future in sent)
