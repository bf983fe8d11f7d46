"""What an environment sent beside the fixed fields, judged and sorted.

The payload has been decoded to plain data; here it is decided whether it is an answer of the kind its flags name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentenv.errors import ProtocolError
from agentenv.fleet.finals import as_info
from agentenv.wire.layout import SpaceLayout, check_variables
from agentenv.wire.slot import Flag


@dataclass(slots=True)
class Answer:
    """What an environment sent beside the fixed fields.

    Attributes:
        info: The info of the step or reset.
        observation: Variable-size leaves of the observation.
        final_info: Info of the step that ended the episode, when the answer is of the next one; else None.
        final_observation: Its observation, whole.
        value: Result of a render or call.
    """

    info: dict[str, Any]
    observation: Sequence[object] = ()
    final_info: dict[str, Any] | None = None
    final_observation: Any = None
    value: Any = None


def read_answer(
    flags: int, value: Any, layout: SpaceLayout, read_final: Callable[[object], tuple[Any, dict[str, Any]]]
) -> Answer | None:
    """The answer a payload is, or None when no flag says what it is.

    Args:
        flags: The ``Flag`` bits of the answer.
        value: The decoded payload.
        layout: The plan of the observation space.
        read_final: Reads the record of a final observation.

    Raises:
        ProtocolError: It is not what its flags say.
    """
    if flags & Flag.VALUE:
        return Answer({}, value=value)
    if flags & Flag.INFO:
        check_variables(layout, ())
        return Answer(as_info(value))
    if not flags & Flag.RECORD:
        return None
    if not (isinstance(value, list) and len(value) == 3):
        raise ProtocolError("a record that is not three parts")
    info, variable, final_record = value
    check_variables(layout, variable)
    if flags & Flag.FINAL:
        observation, final_info = read_final(final_record)
        return Answer(as_info(info), variable, final_info, observation)
    return Answer(as_info(info), variable)


def as_error_texts(value: Any) -> tuple[str, str, str]:
    """The type name, message and traceback of an error report.

    Raises:
        ProtocolError: It is not three texts.
    """
    if not (isinstance(value, list) and len(value) == 3 and all(isinstance(part, str) for part in value)):
        raise ProtocolError("an error report that is not three texts")
    name, message, trace = value
    return name, message, trace
