"""How patient a command driver is with its site."""

from msgspec import Struct

__all__ = ["Settings"]


class Settings(Struct, frozen=True):
    """Times are in seconds. The defaults suit a busy cluster with careful administrators."""

    poll_s: float = 30.0
    """Between two listings while nothing happens."""
    poll_min_s: float = 2.0
    """Never sooner than this after the one before."""
    poll_most_s: float = 300.0
    """The longest wait between two listings that fail."""
    timeout_s: float = 60.0
    submit_timeout_s: float = 300.0
    """Longer than the two minutes for which sbatch tries by itself."""
    submit_tries: int = 10
    retry_first_s: float = 2.0
    retry_most_s: float = 30.0
    settle_s: float = 20.0
    """After a doubtful submission: so long it may take to become visible …"""
    settle_looks: int = 5
    """… and so many good look-ups after that, none of which finds it, make certain that there is none."""
    settle_every_s: float = 5.0
    """Between two of them."""
    restart_settle_s: float = 60.0
    """The same for a submission that an earlier manager began: its command may still run."""
    vanish_polls: int = 5
    vanish_s: float = 300.0
    """An allocation that is in no listing, no history and has left no words is over after so many polls and so long."""
    vanish_waiting_s: float = 60.0
    """The same for one that waited when it was last seen, where the history is not later than that."""
    gone_polls: int = 5
    gone_s: float = 60.0
    """The same for one that was killed, counted from when the cluster took the kill …"""
    gone_waiting_s: float = 10.0
    """… and for one that was killed while it waited: nothing of it has to end first."""
    own_words_s: float = 60.0
    """How long a job's own last words may take to become visible after its provider says that it ended."""
    linger_s: float = 300.0
    """A job that has said its last words and is still listed as running so long after is over, and is killed."""
    unsure_polls: int = 100
    """How many observations that tell nothing the core takes before it kills."""
    unsure_s: float = 600.0
    """They are spread over at least this time …"""
    unsure_states: tuple[tuple[str, float], ...] = (
        ("UNKWN", 1800.0),
        ("ZOMBI", 1800.0),
    )
    """… or this one, for native states that may honestly last."""
    kill_window_s: float = 0.2
    """Kills asked for within this time go out in one command."""
    kill_grace_s: float = 30.0
    """After a gentle kill, before the native one; then before the last means."""
    kill_tries: int = 10
    kill_most_s: float = 600.0
    """After so many tries, or so long, it is said that the cluster never confirmed the end."""
    history_commands: int = 4
    """In one poll cycle."""
    breaker_failures: int = 5
    """Failed commands in a row, after which the site is left alone for a while."""
    breaker_first_s: float = 30.0
    breaker_most_s: float = 600.0
    commands_per_minute: int = 120
    trust_scheduler: bool = False
    """Whether an end without any exit status counts as a success."""
    remember_s: float = 3600.0
    """How long one that is over is watched for, in case that it was not."""
