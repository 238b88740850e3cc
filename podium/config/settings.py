"""What all sections of the configuration share: unknown keys are forbidden, everything is frozen."""

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_value(cls, value: Any, info: ValidationInfo) -> Any:
        """Numbers are not to be given as true or false; only a field that names them takes them."""
        assert info.field_name is not None
        allowed = get_args(cls.model_fields[info.field_name].annotation)
        if isinstance(value, bool) and not any(option is value for option in allowed):
            raise ValueError(f"found {str(value).lower()}; a truth value is not allowed here")
        return value
