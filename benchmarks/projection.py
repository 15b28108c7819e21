"""What rounds of 10,000 and of 1,000,000 clients would take, from what was measured.

    python benchmarks/projection.py

Reads results/overhead.json and measures nothing: every figure is a measured cost times a count.
Costs of the server are CPU seconds of one core. Clients that are not asked cost next to nothing
(benchmarks/population.py).
"""

import json
from pathlib import Path

FOLDER = Path(__file__).parent / "results"
COHORTS = {  # population -> clients a round: half of them, as in the paper, and 500
    100: (50,),
    10_000: (5_000, 500),
    1_000_000: (500_000, 500),
}
LINK = 10e9 / 8  # bytes a second of the server's network, both ways: 10 Gbit/s
STEPS = 320  # of a client a round in the paper's run: 10 epochs of 500 images, batch 16
CENTROIDS = 8 * 512 * 4  # bytes that a client's local centroids take, all kept till the round ends
WORKERS = 2  # of the measurement
COHORT = 20


def main() -> None:
    overhead = json.loads((FOLDER / "overhead.json").read_text())
    ours = overhead["sides"]["ours"]
    a_reply = ours["server_cpu_s"] / COHORT

    client = STEPS * overhead["step_s"]
    lost = WORKERS * ours["overhead_s"] / COHORT
    share = lost / (lost + client)
    print(f"a client of the paper's run trains {client:.0f} s on one core and costs {lost:.2f} s: "
          f"{100 * share:.2f} % of a round is not training")  # fmt: skip
    print(f"server: {1e3 * a_reply:.0f} ms of CPU a reply of {ours['mb_down']:.0f} MB\n")
    print("| clients | a round | GB each way | s at 10 Gbit/s | CPU s, replies "
          "| GB of centroids | slowest part |\n|---|---|---|---|---|---|---|")  # fmt: skip
    for clients, cohorts in COHORTS.items():
        for cohort in cohorts:
            size = cohort * ours["mb_down"] * 1e6
            costs = {
                "network": size / LINK,
                "adding replies, one after another": cohort * a_reply,
            }
            network, replies = costs.values()
            print(f"| {clients:,} | {cohort:,} | {size / 1e9:,.1f} | {network:,.1f} "
                  f"| {replies:,.1f} | {cohort * CENTROIDS / 1e9:,.3f} "
                  f"| {max(costs, key=costs.__getitem__)} |")  # fmt: skip


if __name__ == "__main__":
    main()
