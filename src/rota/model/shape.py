"""Shapes: the unit of scheduling.

Two jobs that ask for the same and obey the same limits and policy have the same Shape, so a million queued jobs of
three shapes cost three decisions. What was learned is a value *of* a shape, so learning never moves jobs between
shapes.
"""

from msgspec import Struct

from rota.model.needs import Needs

__all__ = ["Shape"]


class Shape(Struct, frozen=True, order=False):
    """The signature that jobs are scheduled by. Equal signatures are interned to one number by the core."""

    needs: Needs
    limits: tuple[str, ...] = ()
    """Names of the limits that each running job takes one of, sorted and distinct."""
    policy: str = "default"
    group: str = ""
    """Learning group."""
    override: str = "higher"
    level: int = 0
    """How often the needs were escalated after a job exceeded them."""
    share: str = ""
    """Who its jobs' use is counted for, if its policy shares fairly."""
    ends: bool = False
    """Whether its jobs are ended after the time that they ask for: then nothing learned makes it longer."""
    inputs: tuple[str, ...] = ()
    """Paths that its jobs read, if its policy looks at where these are; else they do not tell shapes apart."""
    scout: str = ""
    """Whether its jobs are scouts (`scout`), or wait for what such use (`rest`)."""
