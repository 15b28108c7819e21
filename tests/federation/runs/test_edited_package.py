"""Who writes the next plug-in while a run is on does not end the run."""


def test_a_file_that_is_added_to_a_users_package_ends_no_run(toy, federate, watched):
    def look(client, round_, sent, reply):
        if round_ == 1:
            toy.package({"methods/another.py": "# for the next run"})

    run = federate(toy("federation.rounds=2"), app=watched(look))
    assert [record["clients"]["dropped"] for record in run.records] == [[]] * len(run.records)
    assert run.records[-1]["round"] == 2
