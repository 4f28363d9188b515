"""For those who come from QCG-PilotJob: its request files, its protocol, and its client's methods in process.

from rota.qcg import Jobs, LocalManager

with LocalManager() as manager:
    names = manager.submit(Jobs().add(name="sim", exec="./simulate", args=["${it}"], iteration=100, numCores=2))
    print(manager.wait4(names))
"""

from rota.qcg.jobs import Jobs
from rota.qcg.local import LocalManager, TimeoutElapsed

__all__ = ["Jobs", "LocalManager", "TimeoutElapsed"]
