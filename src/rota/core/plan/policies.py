"""The policies that shapes name: which there are, and which cannot be used because a part of them failed."""

from rota.core.state import State
from rota.model.verdict import Verdict, Wake
from rota.schedule.policy import plugins_of

__all__ = ["no_policy", "out_of_order"]


def no_policy(state: State, name: str) -> str | None:
    """Why jobs cannot name a policy, with those that there are; None: they can."""
    if name in state.settings.policies:
        return None
    return f"there is no policy '{name}'; there are {', '.join(sorted(state.settings.policies))}"


def out_of_order(state: State, name: str) -> Verdict | None:
    """Why no job of a policy is placed now; None: nothing is wrong with it."""
    policy = state.settings.policies.get(name)
    if policy is None:
        words = f"the policy '{name}' is no longer configured: rota modify --policy, or [policy.{name}] in config.toml"
        return Verdict("everywhere", "policy", "unknown", words, True, (Wake.STATUS,))
    for kind, part in plugins_of(policy) if state.soft.disabled else ():
        why = state.soft.disabled.get((kind, part))
        if why is not None:
            words = (
                f"the {kind} '{part}' of the policy '{name}' {why}; it is not asked again until rota is started anew"
            )
            return Verdict("everywhere", "policy", "plugin", words, True, (Wake.STATUS,))
    return None
