"""Field types for names: ids, Gymnasium ids, ``module:callable``.

Only the form is checked. Nothing is imported or looked up, because what a name stands for is the sandbox's business.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from agentenv.config.faults import Fault, refusal
from agentenv.config.words import got_text

ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
STAYS_HERE = 'move it to a module and pass "module:callable"; lambdas and what is defined in __main__ stay here'
# Looser than the loader on purpose: an editor's regular expressions do not know what a Python identifier is.
ENTRY_PATTERN = r"^[^\s:/]+:[^\s:/]+$"
# Gymnasium's own grammar of an id, less the colon: optional "namespace/", a name, optional "-v3" (ENV_ID_RE there).
_GYM_ID = re.compile(r"(?:[\w-]+/)?[\w.-]+?(?:-v\d+)?", re.ASCII)


def is_entry_point(text: str) -> bool:
    """Whether ``text`` has the form ``package.module:callable``."""
    module, colon, attribute = text.partition(":")
    # "my_env.py:MyEnv" has the form, but nobody means the module "py" of a package "my_env" by it.
    if not colon or module.endswith(".py"):
        return False
    return all(part.isidentifier() for side in (module, attribute) for part in side.split("."))


def importable_name(value: Any) -> str | None:
    """``module:callable`` of a class or function, or None where a sandbox could not import it by that."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not module or not name or module == "__main__" or "<" in name:
        return None
    return f"{module}:{name}"


def name_wrappers(value: Any) -> Any:
    """A list of wrappers with each class or function by its name; what has none stays, to be refused."""
    if not isinstance(value, (list, tuple)):
        return value
    named: list[Any] = []
    for one in value:
        if isinstance(one, Mapping) and callable(one.get("wrapper")):
            named.append({**one, "wrapper": importable_name(one["wrapper"]) or one["wrapper"]})
        else:
            named.append((importable_name(one) or one) if callable(one) else one)
    return named


def _entry_hint(text: object) -> str:
    if callable(text):
        return STAYS_HERE
    if isinstance(text, str) and ("/" in text or text.split(":")[0].endswith(".py")):
        return 'name a module as import does, not a file: "my_package.my_module:MyClass"'
    return 'such as "my_package.my_module:MyClass"'


def _refuse_main(value: object) -> None:
    if isinstance(value, str) and value.partition(":")[0] == "__main__" and ":" in value:
        name = value.partition(":")[2]
        hint = f'move it to a module and name it as "module:callable", such as "my_module:{name}"'
        raise refusal(Fault((), f"__main__ is not available in a sandbox, {got_text(value)}", hint))


def check_entry_point(value: object) -> object:
    """Give ``value`` back, or refuse it as not ``module:callable``."""
    _refuse_main(value)
    if not isinstance(value, str) or not is_entry_point(value):
        raise refusal(Fault((), f'expected "module:callable", {got_text(value)}', _entry_hint(value)))
    return value


def _check_policy(value: object) -> object:
    if value == "random" or (isinstance(value, str) and is_entry_point(value)):
        return value
    raise refusal(Fault((), f'expected "random" or "module:callable", {got_text(value)}', _entry_hint(value)))


def _is_env_name(text: str) -> bool:
    module, colon, rest = text.partition(":")
    if not colon:
        return _GYM_ID.fullmatch(text) is not None
    # "package:Name-v0" is Gymnasium's own way to import a package before the look-up.
    by_import = all(part.isidentifier() for part in module.split(".")) and re.search(r"-v\d+$", rest) is not None
    return is_entry_point(text) or (by_import and _GYM_ID.fullmatch(rest) is not None)


def _check_env(value: object) -> object:
    _refuse_main(value)
    if isinstance(value, str) and _is_env_name(value):
        return value
    hint = 'such as "CartPole-v1" or "my_package.my_module:MyEnv"'
    if isinstance(value, str) and ".py" in value:
        hint = _entry_hint(value)
    raise refusal(Fault((), f'expected a Gymnasium id or "module:callable", {got_text(value)}', hint))


def _check_id(value: object) -> object:
    if isinstance(value, str) and re.fullmatch(ID_PATTERN[1:-1], value):
        return value
    wanted = "1 to 63 letters, digits, '.', '_' or '-', the first a letter or digit"
    raise refusal(Fault((), f"expected {wanted}, {got_text(value)}", "it becomes a directory and a host name"))


def _check_render_mode(value: object) -> object:
    if value == "human":
        reason = "there is no display inside a sandbox; render with rgb_array and show the frames yourself"
        modes = '"rgb_array", "ansi", "rgb_array_list"'
        raise refusal(Fault((), f'expected one of {modes}, got "human"', reason))
    return value


Identifier = Annotated[str, BeforeValidator(_check_id), WithJsonSchema({"type": "string", "pattern": ID_PATTERN})]
EntryPoint = Annotated[
    str, BeforeValidator(check_entry_point), WithJsonSchema({"type": "string", "pattern": ENTRY_PATTERN})
]
EnvName = Annotated[str, BeforeValidator(_check_env), WithJsonSchema({"type": "string", "minLength": 1})]
Policy = Annotated[
    str,
    BeforeValidator(_check_policy),
    WithJsonSchema({"type": "string", "pattern": rf"^random$|{ENTRY_PATTERN}"}),
]
check_render_mode = BeforeValidator(_check_render_mode)
