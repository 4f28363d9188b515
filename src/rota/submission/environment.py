"""The part of the submitter's environment that goes with a batch."""

from collections.abc import Mapping
from functools import lru_cache

__all__ = ["submit_environment"]

SECRET_WORDS = (
    "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "API_KEY", "APIKEY", "CREDENTIAL", "PRIVATE_KEY",
    "ACCESS_KEY", "SIGNING_KEY", "ENCRYPTION_KEY", "SESSION_KEY", "COOKIE", "BEARER", "JWT",
)  # fmt: skip
"""A variable with one of these in its name is not sent."""
SECRET_ENDS = ("_PASS", "_PWD", "SSHPASS", "_AUTH")
FOREIGN_STARTS = ("SLURM_", "SBATCH_", "SALLOC_", "SRUN_", "PBS_", "LSB_", "LS_JOB", "SGE_", "SSH_", "ROTA_")
FOREIGN_NAMES = frozenset(("TMPDIR", "JOB_ID"))
"""Variables of the cluster job, the login session or the machine that you submit from: not sent."""
GRID_ENGINE_NAMES = frozenset((
    "ARC", "JOB_NAME", "JOB_SCRIPT", "NHOSTS", "NQUEUES", "NSLOTS", "PE", "PE_HOSTFILE", "QUEUE", "REQUEST",
    "RESTARTED", "TASK_ID",
))  # fmt: skip
"""Left out if SGE_TASK_ID is set: then you submit from inside a Grid Engine job, which made them."""
KEPT = frozenset(
    ("PBS_CONF_FILE", "SGE_CELL", "SGE_CLUSTER_NAME", "SGE_EXECD_PORT", "SGE_QMASTER_PORT", "SGE_ROOT", "SLURM_CONF")
)
"""Variables that are sent: by them the cluster's own commands find their configuration."""
SHELL_NAMES = frozenset(("PWD", "OLDPWD", "SHLVL", "_"))
"""Variables that a shell makes itself: left out without a word."""


def submit_environment(environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The variables of the submitter that are sent, and the names of those that are not."""
    sent: dict[str, str] = {}
    left_out: list[str] = []
    foreign = FOREIGN_NAMES | GRID_ENGINE_NAMES if "SGE_TASK_ID" in environ else FOREIGN_NAMES
    for name, value in environ.items():
        if name in SHELL_NAMES:
            continue
        if _stays(name) or name.upper() in foreign or not _is_text(name + value):
            left_out.append(name)
        else:
            sent[name] = value
    return sent, sorted(left_out)


@lru_cache(4096)  # a program that submits often has the same variables each time
def _stays(name: str) -> bool:
    upper = name.upper()
    return (
        not name
        or (upper.startswith(FOREIGN_STARTS) and name not in KEPT)
        or upper.endswith(SECRET_ENDS)
        or any(word in upper for word in SECRET_WORDS)
    )


def _is_text(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
