import json

from orchestra_flwr.console.reporter import reporter


def test_lines_are_for_people_or_for_programs(capsys):
    reporter("text", "a")("round 1: training\x1b[2J")
    reporter("text")("listening")
    reporter("json", "a")("failed: out of memory")
    reporter("json")("run 0001: done", "run_ended", "error", run="0001")
    text, plain, line, event = capsys.readouterr().out.splitlines()
    assert text[2] == ":" and text.endswith(r" a: round 1: training\x1b[2J")
    assert plain[8:] == " listening"
    values = json.loads(line)
    assert (values["level"], values["client"]) == ("warning", "a")
    assert values["message"] == "failed: out of memory" and values["time"]
    values = json.loads(event)
    assert (values["event"], values["level"], values["run"]) == ("run_ended", "error", "0001")
    assert "client" not in values
