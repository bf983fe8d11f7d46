"""One environment's value and its block of bytes: the plan, the way in and the way out.

``plan`` says where each part lies, ``Writer`` stores a value there, ``Reader`` makes a value from it, and
``check_variables`` judges the parts of variable size, which travel beside the block.
"""

from __future__ import annotations

from agentenv.wire.plan import Leaf, SpaceLayout, VariableLeaf, plan
from agentenv.wire.reader import Reader, check_variable, check_variables
from agentenv.wire.writer import Writer

__all__ = ["Leaf", "Reader", "SpaceLayout", "VariableLeaf", "Writer", "check_variable", "check_variables", "plan"]
