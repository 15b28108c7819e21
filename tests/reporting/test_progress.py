import logging
import re
import sys
import threading
import time
from io import StringIO

import pytest
from rich.console import Console

from orchestra_flwr.reporting import RoundOutcome, make_progress


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def a_round(progress, clock, number, scores=None, *, dropped=(), seconds=60.0):
    progress.round_started(number, 3, "training")
    for partition in range(3):
        clock.now += seconds / 3
        progress.client_done(partition, ok=partition >= len(dropped))
    losses = {"cluster": 1.25, "rotation": 0.75, "total": 2.0}
    progress.round_finished(RoundOutcome(number, losses, scores, seconds, dropped))


def test_plain_is_one_line_a_round_with_all_facts(clock, capsys):
    with make_progress("plain", rounds=10) as progress:
        progress.round_started(0, 3, "clustering")
        progress.round_finished(RoundOutcome(0, {}, None, 5.0, []))
        a_round(progress, clock, 1, {"knn": 0.451, "linear": 0.6, "feature_std": 0.9}, seconds=6)
        a_round(progress, clock, 2, dropped=["client 4: not finite"], seconds=6)
        progress.message("done")
    clustering, first, second, dropped, done = capsys.readouterr().out.splitlines()
    assert clustering == "before training: clustering  0/3 clients  5.0 s"
    assert first == (
        "round 1/10 training  3/3 clients  loss 2.000 (cluster 1.250, rotation 0.750)  "
        "kNN 45.1 %  linear 60.0 %  6.0 s  54 s left"
    )
    assert "3/3 clients (1 failed)" in second
    assert second.endswith("6.0 s  48 s left")
    assert dropped == "  dropped: client 4: not finite"
    assert done == "done"


def test_a_run_with_a_clock_shows_its_virtual_time(clock, capsys):
    with make_progress("plain", rounds=10) as progress:
        progress.round_started(1, 3, "training")
        progress.round_finished(RoundOutcome(1, {}, None, 5.0, [], 7500.0))
    assert capsys.readouterr().out.startswith(
        "round 1/10 training  0/3 clients  5.0 s  virtual time 2 h 05 min"
    )


def test_before_training_nothing_reads_like_a_failure(clock, capsys):
    """Nobody is asked, and no time counts: 0 clients in 0.0 s were told."""
    with make_progress("plain", rounds=2) as progress:
        clock.now += 40
        progress.images_evaluated("online", 100, 2500)
        progress.round_finished(RoundOutcome(0, {}, {"knn": 0.5}, 0.0, []))
        progress.round_started(0, 3, "scoring")  # by clients, which is no part of a round's time
        for client in "abc":
            progress.client_done(client, ok=True)
        progress.round_finished(RoundOutcome(0, {}, None, 0.0, []))
    evaluating, finished, scored = capsys.readouterr().out.splitlines()
    assert scored == "before training: scoring  3/3 clients"
    assert evaluating == "before training: evaluating online  100/2,500 images  40 s"
    assert finished == "before training  kNN 50.0 %"


def test_of_a_start_without_images_and_without_clients_there_is_no_line(capsys):
    """Of a server without images it was "before training", and nothing behind it."""
    with make_progress("plain", rounds=1) as progress:
        progress.round_finished(RoundOutcome(0, {}, None, 0.0, []))
        assert not capsys.readouterr().out
        progress.round_finished(RoundOutcome(0, {}, None, 0.0, ["client a: late"]))
    assert capsys.readouterr().out == "  dropped: client a: late\n"


def test_the_line_of_a_round_is_of_those_that_trained_and_not_of_those_that_scored(clock, capsys):
    with make_progress("plain", rounds=1) as progress:
        progress.round_started(1, 3, "training")
        for ok in (True, True, False):
            progress.client_done("a", ok=ok)
        progress.round_started(1, 2, "scoring")
        progress.client_done("a", ok=True)
        progress.round_finished(RoundOutcome(1, {}, None, 5.0, []))
    assert capsys.readouterr().out == "round 1/1 training  3/3 clients (1 failed)  5.0 s\n"


def test_plain_lines_are_flushed_and_without_control_characters(clock):
    class File(StringIO):
        unflushed = 0

        def write(self, text):
            self.unflushed += 1
            return super().write(text)

        def flush(self):
            self.unflushed = 0

    file = File()
    with make_progress("plain", 2, Console(file=file)) as progress:
        a_round(progress, clock, 1, seconds=6)
        assert file.unflushed == 0
    assert file.getvalue().count("\n") == 1
    assert file.getvalue().strip().isascii()
    assert file.getvalue().strip().isprintable()


def test_long_evaluations_give_a_line_every_half_minute_at_most(clock, capsys):
    with make_progress("plain", 3) as progress:
        progress.round_started(1, 2, "training")
        for done in range(0, 2501, 100):
            clock.now += 4
            progress.images_evaluated("target", done, 2500)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "round 1/3 evaluating target  700/2,500 images  32 s"
    assert len(lines) == 3


def drawn(file, words):
    """The line with these words that a display draws next, which it does ten times a second."""
    before = len(file.getvalue())
    for _ in range(200):
        for line in file.getvalue()[before:].splitlines():
            if words in line:
                return line
        threading.Event().wait(0.05)
    raise AssertionError(f"{words} was not drawn")


def test_the_live_display_shows_an_evaluation_and_then_clients_again(clock):
    file = StringIO()
    with make_progress("live", 3, Console(file=file, force_terminal=True, width=100)) as progress:
        progress.round_started(1, 2, "training")
        progress.images_evaluated("target", 256, 2500)
        assert "256/2500" in drawn(file, "evaluating target")
        progress.round_started(2, 2, "training")
        assert "0/2" in drawn(file, "training")


def test_long_rounds_give_a_line_every_half_minute_at_most(clock, capsys):
    with make_progress("plain", 1) as progress:
        progress.round_started(1, 400, "training")
        for partition in range(400):
            clock.now += 0.3
            progress.client_done(partition, ok=True)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("round 1/1 training  10")
    assert lines[0].endswith("clients  30 s")


def test_time_left_counts_what_lies_between_rounds_and_only_rounds_run_here(clock, capsys):
    with make_progress("plain", rounds=100) as progress:
        a_round(progress, clock, 91, seconds=60)
        clock.now += 60  # an evaluation
        a_round(progress, clock, 92, seconds=60)
    first, second = capsys.readouterr().out.splitlines()[1::2]
    assert first.endswith("9 min left")
    assert second.endswith("12 min left")  # (60 + 60 + 60) / 2 seconds for each of 8


def test_off_shows_nothing(clock, capsys):
    with make_progress("off", 1) as progress:
        a_round(progress, clock, 1)
        progress.message("hello")
    assert capsys.readouterr() == ("", "")


def test_auto_is_plain_where_stdout_is_no_terminal(clock, capsys):
    with make_progress("auto", 1) as progress:
        a_round(progress, clock, 1, seconds=1)
    assert capsys.readouterr().out.startswith("round 1/1 training  3/3 clients")


@pytest.mark.parametrize(("term", "live"), [("xterm", True), ("dumb", False)])
def test_auto_on_a_terminal_is_live_unless_it_is_dumb(clock, monkeypatch, term, live):
    monkeypatch.setenv("TERM", term)
    file = StringIO()
    with make_progress("auto", 1, Console(file=file, force_terminal=True)) as progress:
        a_round(progress, clock, 1)
    assert ("\x1b[" in file.getvalue()) is live


def live_run(first_round=1, act=lambda progress: None, width=160):
    file = StringIO()
    console = Console(file=file, force_terminal=True, width=width, color_system=None)
    with make_progress("live", 10, console) as progress:
        progress.round_started(first_round, 3, "training")
        progress.client_done(7, ok=True)
        progress.client_done(8, ok=False)
        act(progress)
        losses = {"cluster": 1.25, "total": 2.0}
        progress.round_finished(
            RoundOutcome(first_round, losses, {"knn": 0.451}, 4.2, ["client 8: [late]"])
        )
    return file.getvalue()


def test_live_shows_rounds_clients_losses_scores_and_time_left():
    text = live_run(first_round=4)
    assert " 3/10" in text  # rounds of before the resume count as done
    last = text[text.rindex("rounds") :]
    assert " 4/10" in last
    assert " 2/3" in last
    assert "1 failed" in last
    assert "loss 2.000 (cluster 1.250)" in last
    assert "kNN 45.1 %" in last
    assert " left" in last
    assert "round 4/10 training  loss 2.000 (cluster 1.250)  kNN 45.1 %  4.2 s\n" in text
    assert "dropped: client 8: [late]\n" in text


@pytest.mark.parametrize("width", [40, 80])
def test_a_narrow_terminal_cuts_off_the_losses_and_not_the_count_of_rounds(width):
    text = live_run(first_round=4, width=width)
    last = next(line for line in text[text.rindex("rounds") :].splitlines())
    assert " 4/10 " in last and "0:00:0" in last and len(last) <= width


def test_logs_prints_and_messages_stand_on_lines_of_their_own_above_the_bars(capsys):
    logger = logging.getLogger("test_progress.noise")
    handler = logging.StreamHandler(sys.stderr)  # holds the stream of before the display
    before = handler.stream
    logger.addHandler(handler)

    def noise(progress):
        logger.warning("a log record")
        print("a print")
        progress.message("a message [/bold]")

    try:
        text = live_run(act=noise)
        assert handler.stream is before
        logger.warning("after")
    finally:
        logger.removeHandler(handler)
    for line in ("a log record", "a print", "a message [/bold]"):
        # The bars are erased before the line and drawn again after it.
        assert f"\x1b[2K{line}\n" in text
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "after\n"


def test_live_gives_the_terminal_back_after_an_error():
    stdout, file = sys.stdout, StringIO()

    def fail():
        with make_progress("live", 3, Console(file=file, force_terminal=True)) as progress:
            progress.round_started(1, 2, "training")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert sys.stdout is stdout
    assert file.getvalue().endswith("\x1b[?25h")  # the cursor is visible


@pytest.mark.parametrize("mode", ["plain", "live"])
def test_names_do_not_command_the_terminal(mode):
    console = Console(file=StringIO(), force_terminal=True, width=200)
    progress = make_progress(mode, 3, console)
    with progress:
        progress.message("client \x1b]0;owned\x07 is refused")
        progress.round_finished(RoundOutcome(1, {}, None, 1.0, ["\x1b[2Jkitchen: failed"]))
    shown = console.file.getvalue()
    assert r"client \x1b]0;owned\x07 is refused" in shown and r"\x1b[2Jkitchen" in shown
    assert "\x1b]0" not in shown and "\x1b[2Jk" not in shown


def test_plain_says_what_takes_long_between_rounds(monkeypatch, capsys):
    monkeypatch.setattr("orchestra_flwr.console.phases.FIRST_SECONDS", 0.01)
    with make_progress("plain", 1) as progress:
        with progress.phase("judging the encoder"):
            time.sleep(0.3)
        progress.phase_started("starting Ray")
        time.sleep(0.3)
        progress.phase_ended()
    assert capsys.readouterr().out.splitlines() == ["judging the encoder ...", "starting Ray ..."]


def test_live_shows_what_goes_on_as_a_bar_while_it_does():
    file = StringIO()
    with make_progress("live", 1, Console(file=file, force_terminal=True, width=100)) as progress:
        with progress.phase("judging [the encoder]"):
            drawn(file, "judging [the encoder]")
        progress.message("after")
    text = file.getvalue()
    assert "judging" not in text[text.index("after") :]


def test_off_is_silent_about_phases(capsys):
    with make_progress("off", 1) as progress, progress.phase("judging"):
        pass
    assert capsys.readouterr() == ("", "")


def test_plain_says_that_the_first_round_has_begun(monkeypatch, capsys):
    """Nobody knows yet how long one is; later ones are not said twice."""
    monkeypatch.setattr("orchestra_flwr.console.phases.FIRST_SECONDS", 0.01)
    with make_progress("plain", 2) as progress:
        for number in (1, 2):
            progress.round_started(number, 3, "training")
            time.sleep(0.3)
            progress.round_finished(RoundOutcome(number, {}, None, 0.3, []))
    begun, first, second = capsys.readouterr().out.splitlines()
    assert begun == "round 1/2 training ..."
    assert first.startswith("round 1/2 training  0/3") and second.startswith("round 2/2 training  ")


@pytest.mark.parametrize("mode", ["plain", "live"])
def test_a_servers_lines_begin_with_the_time(clock, mode):
    for timed in (True, False):
        file = StringIO()
        with make_progress(mode, 2, Console(file=file, width=100), timed=timed) as progress:
            progress.message("client anna joined with 40 images")
        match = re.search(r"\d\d:\d\d:\d\d client anna joined", file.getvalue())
        assert (match is not None) == timed
