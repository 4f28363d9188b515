"""rota: one job-management system for people who run many commands.

The public names are loaded when first used, so that `import rota` and the command line stay quick.
This file must stay readable by Python 3.8: the runner's package lives below it.
"""

__version__ = "0.1.0"

_PUBLIC = {
    "Client": "rota.api",
    "Batch": "rota.api",
    "Graph": "rota.submission.graph",
    "Job": "rota.api",
    "Pilot": "rota.api",
    "local": "rota.api",
    "RotaError": "rota.model.errors",
    "UsageError": "rota.model.errors",
    "NotFoundError": "rota.model.errors",
    "RefusedError": "rota.model.errors",
}

__all__ = ["__version__", "aio", *_PUBLIC]


def __getattr__(name):  # type: ignore[no-untyped-def]
    import importlib

    if name == "aio":
        return importlib.import_module("rota.aio")
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError("module 'rota' has no attribute %r" % name)


def __dir__():  # type: ignore[no-untyped-def]
    return sorted(__all__)
