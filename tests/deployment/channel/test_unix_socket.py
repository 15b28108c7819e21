import os
import resource
import threading

import pytest

from orchestra_flwr.deployment.channel.unix_socket import (
    Channel,
    ChannelClosedError,
    ChannelListener,
)
from orchestra_flwr.folder_lock import FolderInUseError, locked


@pytest.fixture
def listener(tmp_path_factory):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory(prefix="orch") as folder:  # short: a socket's path is limited
        listener = ChannelListener(Path(folder))
        yield listener
        listener.close()


@pytest.fixture
def ends(listener):
    one = Channel.connect(listener.address)
    other = listener.accept(5)
    yield one, other
    one.close()
    other.close()


def test_headers_and_bytes_arrive_whole_and_in_order(ends):
    one, other = ends
    large = os.urandom(5_000_000)  # more than any socket buffers
    sender = threading.Thread(target=one.send, args=({"n": 1, "text": "ü"}, [b"", large]))
    sender.start()
    assert other.receive() == ({"n": 1, "text": "ü"}, [b"", large])
    sender.join()
    other.send({"back": None})
    assert one.ready(5)
    assert one.receive() == ({"back": None}, [])
    assert not one.ready(0)


def test_a_locked_file_is_shared(ends, tmp_path):
    """The lock holds until both sides have closed it, however the first one ended."""
    one, other = ends
    with locked(tmp_path) as file:
        one.send({"locked": True})
        one.share(file)
        one.send({"next": 1})
    assert other.receive()[0] == {"locked": True}
    descriptor = other.take_share()
    assert other.receive()[0] == {"next": 1}
    with pytest.raises(FolderInUseError), locked(tmp_path):
        pass
    os.close(descriptor)
    with locked(tmp_path):
        pass


def test_an_end_that_shares_nothing_is_noticed(ends):
    one, other = ends
    one._socket.sendall(b"\0")
    with pytest.raises(ChannelClosedError, match="shares no file"):
        other.take_share()
    one.close()
    with pytest.raises(ChannelClosedError):
        other.take_share()


def test_an_end_that_goes_is_noticed_also_in_the_middle(ends):
    one, other = ends
    one._socket.sendall(b"\0\0\0")
    one.close()
    assert other.ready(5)
    with pytest.raises(ChannelClosedError, match="has ended"):
        other.receive()
    with pytest.raises(ChannelClosedError):
        for _ in range(2):
            other.send({}, [bytes(1 << 20)])


def test_a_length_out_of_this_world_is_refused(ends):
    one, other = ends
    one._socket.sendall(b"\xff" * 8)
    with pytest.raises(ChannelClosedError, match="language"):
        other.receive()


def test_nobody_listens(listener, tmp_path):
    assert listener.accept(0.01) is None
    with pytest.raises(ChannelClosedError, match="nobody listens"):
        Channel.connect(str(tmp_path / "none"))


def test_a_process_may_have_thousands_of_connections(listener, request):
    """A server's app reports only after its clients have come back."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, limits[1]))
    request.addfinalizer(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    request.addfinalizer(lambda: [os.close(file) for file in files])
    assert listener.accept(0) is None
    with Channel.connect(listener.address) as one, listener.accept(5) as other:
        assert not other.ready(0)
        one.send({"n": 1})
        assert other.ready(5) and other.receive() == ({"n": 1}, [])
