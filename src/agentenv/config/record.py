"""What all tables of the configuration have in common."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

MAX_MB = 1 << 24  # 16 TiB
LogLevel = Literal["debug", "info", "warning", "error"]


class Record(BaseModel):
    """Base of the tables: frozen, and refusing keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
