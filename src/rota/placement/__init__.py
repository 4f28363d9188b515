"""Placement by the interfaces of the seed: a Scheduler that places jobs on locations which stack, by policies.

The names are those that engines know (`schedule`, `notify_status`, `get_location`). Behind them are rota's ledger, its
scorers and picks, and the trees of its loop. `rota.placement.streamflow` makes a plugin of StreamFlow of it.
"""

from rota.placement.errors import DefinitionError, PlacementError
from rota.placement.filters import BindingFilter, MatchingFilter, ShuffleFilter
from rota.placement.hardware import Hardware, HardwareRequirement, Storage
from rota.placement.jobs import Job, JobAllocation, LocationAllocation, Status, Token
from rota.placement.locations import (
    AvailableLocation,
    BindingConfig,
    Config,
    DeploymentConfig,
    ExecutionLocation,
    Target,
)
from rota.placement.policies import Policy
from rota.placement.scheduler import DefaultScheduler, Scheduler

__all__ = [
    "AvailableLocation",
    "BindingConfig",
    "BindingFilter",
    "Config",
    "DefaultScheduler",
    "DefinitionError",
    "DeploymentConfig",
    "ExecutionLocation",
    "Hardware",
    "HardwareRequirement",
    "Job",
    "JobAllocation",
    "LocationAllocation",
    "MatchingFilter",
    "PlacementError",
    "Policy",
    "Scheduler",
    "ShuffleFilter",
    "Status",
    "Storage",
    "Target",
    "Token",
]
