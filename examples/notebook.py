"""rota from Python, as in a notebook: a manager for the length of this program, in a temporary directory."""

import rota

with rota.local() as client:
    batch = client.submit("echo $(({} * {}))", values=[str(n) for n in range(1, 21)], name="squares")
    total = 0
    for job in batch.as_completed():
        total += int(job.log())
    print(f"{batch}: the sum of the squares is {total}")

    bad = client.submit("echo 'cannot open {}' >&2; exit 2", values=["a.txt"])
    if not bad.wait(timeout=60):
        for job in bad.jobs("failed"):
            print(f"{job.id} ended with {job.exit_code}: {job.log(stderr=True).strip()}")
