import json
import logging
from datetime import datetime

import pytest

from orchestra_flwr.console.json_lines import JsonFormatter, json_line, show_error


def test_a_line_has_time_level_and_event():
    line = json_line("round_finished", round=3, loss={"total": 1.5})
    values = json.loads(line)
    assert "\n" not in line and datetime.fromisoformat(values.pop("time")).tzinfo is not None
    assert values == {
        "level": "info", "event": "round_finished", "round": 3, "loss": {"total": 1.5},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("warning: ca.crt expires on 2026-12-01", "warning"),
        ("refused: 192.0.2.1: its key is not registered", "warning"),
        ("failed: data.root=/photos: no such folder", "warning"),
        ("client a is refused: it gives no name; it is asked again", "warning"),
        ("client a cannot take part: out_of_memory", "warning"),
        ("127.0.0.1:8443 does not answer any more; trying again", "warning"),
        ("client a joined with 20 images", "info"),
    ],
)
def test_what_needs_attention_has_a_level_of_its_own(text, level):
    assert json.loads(json_line("message", message=text))["level"] == level


def test_what_a_stranger_sends_forges_no_line():
    forged = 'x"}\n{"event": "released"}\x1b[2J'
    line = json_line("message", message=forged)
    assert "\n" not in line and "\x1b" not in line and json.loads(line)["message"] == forged


def test_pythons_own_lines_are_lines_as_well(caplog):
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("x").exception("in %s", "call")
    line = JsonFormatter().format(caplog.records[0])
    values = json.loads(line)
    assert "\n" not in line and (values["level"], values["logger"]) == ("error", "x")
    assert values["message"].startswith("in call\nTraceback") and "two\nlines" in values["message"]


def test_how_a_command_ended_goes_to_stderr(capsys):
    show_error("error: x")
    captured = capsys.readouterr()
    assert captured.out == "" and json.loads(captured.err)["level"] == "error"
