"""What placement refuses. Where StreamFlow is installed these are its own exceptions too, so that it handles them."""

from typing import Any

from rota.model.errors import RotaError, UsageError

try:
    from streamflow.core.exception import WorkflowDefinitionException, WorkflowExecutionException
except ImportError:
    _definition: Any = UsageError
    _execution: Any = RotaError
else:
    _definition = type("_Definition", (UsageError, WorkflowDefinitionException), {})
    _execution = type("_Execution", (RotaError, WorkflowExecutionException), {})

__all__ = ["DefinitionError", "PlacementError"]


class PlacementError(_execution):
    """A job cannot be placed, or is not known."""

    code = "refused"


class DefinitionError(_definition):
    """What was asked for cannot be meant."""

    code = "usage"
