"""Devices, from a table or drawn, and when their work ends."""

import pytest

from orchestra_flwr.config import ConfigError
from orchestra_flwr.federation.clocks import DAY, HOUR, Device
from orchestra_flwr.federation.clocks.virtual import Virtual

CLIENTS = [str(number) for number in range(20)]


def drawn(seed=0, **settings):
    return Virtual(Virtual.Settings(**settings)).devices(CLIENTS, seed)


def test_who_is_always_there_works_without_a_break():
    assert Device(1, 1, 1).back(5.0) == 5.0
    assert Device(1, 1, 1).end(5.0, 10 * DAY) == 5.0 + 10 * DAY


@pytest.mark.parametrize("leaves", [0.0, 9.0, 22.0, 23.75])
@pytest.mark.parametrize("hours", [0.5, 8.0, 23.5])
@pytest.mark.parametrize("start", [0.0, 10.0, 23.0, 31.0])
def test_absence_interrupts_work(leaves, hours, start):
    """Against a count of the quarters of an hour in which somebody is there."""
    device = Device(1, 1, 1, leaves, hours)

    def there(quarter):
        return (quarter / 4 - leaves) % 24 >= hours

    quarter, left = int(4 * start), 4 * 30  # 30 hours of work
    while left:
        left -= there(quarter)
        quarter += 1
    assert device.end(start * HOUR, 30 * HOUR) == pytest.approx(quarter * HOUR / 4)
    first = next(q for q in range(int(4 * start), 1000) if there(q))
    assert device.back(start * HOUR) == pytest.approx(first * HOUR / 4)


def test_the_end_of_work_is_found_at_once_however_short_a_device_is_there():
    device = Device(1, 1, 1, leaves=0.0, hours_away=24 - 1e-9)  # 3.6 microseconds a day
    assert device.end(0.0, 1000.0) == pytest.approx(1000 / 3.6e-6 * DAY, rel=1e-3)
    whole = Device(1, 1, 1, leaves=6.0, hours_away=12.0)
    assert whole.end(0.0, 18 * HOUR) == 6 * HOUR + DAY  # it leaves when it has ended
    assert whole.end(0.0, 18 * HOUR + 1) == 18 * HOUR + DAY + 1


def test_slow_devices_are_drawn_from_the_seed():
    devices = drawn(slow=0.1, slower=10, images_per_second=50, up_mbit=8)
    slow = [name for name, device in devices.items() if device.images_per_second < 50]
    assert len(slow) == 2
    assert devices[slow[0]] == Device(5, 250_000, 100_000, devices[slow[0]].leaves)
    assert devices == drawn(slow=0.1, slower=10, images_per_second=50, up_mbit=8)
    others = drawn(1, slow=0.1, images_per_second=50)
    assert slow != [name for name, device in others.items() if device.images_per_second < 50]


def test_speeds_and_hours_differ_only_where_that_is_asked_for():
    assert {device.images_per_second for device in drawn().values()} == {100.0}
    devices = drawn(spread=0.5, hours_away=8).values()
    assert len({device.images_per_second for device in devices}) == 20
    assert len({device.leaves for device in devices}) == 20
    assert {device.hours_away for device in devices} == {8.0}


def test_a_table_names_each_client(tmp_path):
    table = tmp_path / "devices.csv"
    head = "client,images_per_second,down_mbit,up_mbit,leaves,hours_away\n"
    table.write_text(head + "a,10,8,0.8,22,7.5\nb,20,16,8,,\nother,1,1,1,0,0\n")
    clock = Virtual(Virtual.Settings(devices=str(table)))
    assert clock.devices(["b", "a"], 0) == {
        "b": Device(20, 2e6, 1e6),
        "a": Device(10, 1e6, 1e5, 22, 7.5),
    }
    with pytest.raises(ConfigError, match=r"has no row for client c \(1 of 2"):
        clock.devices(["a", "c"], 0)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (None, "cannot be read"),
        (
            "client,images_per_second,down_mbit,up_mbit\na,0,1,1\n",
            "images_per_second=0: .*1e-6|=0: .*0\\.000001",
        ),
        ("client,images_per_second\na,1\n", "down_mbit: .*its columns are client, "),
        ("client,images_per_second,down_mbit,up_mbit\na,nan,1,1\n", "images_per_second=nan: "),
        ("client,images_per_second,down_mbit,up_mbit,hours_away\na,1,1,1,24\n", "hours_away=24: "),
        ("client,images_per_second,down_mbit,up_mbit\na,1,1,1,9\n", "more values than columns"),
        ("client,images_per_second,down_mbit,up_mbit\na,1,1,1\na,2,1,1\n", "two rows for .* a"),
        (b"\xff\xfe\x00", "cannot be read"),
        ("", "has no row"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_in_a_line(tmp_path, text, line):
    table = tmp_path / "devices.csv"
    if text is not None:
        table.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=line) as error:
        Virtual(Virtual.Settings(devices=str(table))).devices(["a"], 0)
    assert "\n" not in str(error.value) and str(error.value).startswith(f"clock.devices={table}: ")
