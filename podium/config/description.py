"""MLPerf's description of a system, by its own field names; a submission's systems/NAME.json is made from it."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

Status = Literal["Available on-premise", "Available cloud", "Preview", "Research, Development, or Internal (RDI)"]

_SUBMISSION_STATUS: dict[Status, str] = {
    "Available on-premise": "onprem",
    "Available cloud": "cloud",
    "Preview": "preview",
    "Research, Development, or Internal (RDI)": "research",
}


class Description(BaseModel):
    """The 33 fields that MLPerf requires of a system, all of them text. Numbers in the YAML are taken as text."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, coerce_numbers_to_str=True)

    submitter: str = Field(min_length=1)
    division: Literal["closed", "open"]
    status: Status
    system_name: str = Field(min_length=1)
    number_of_nodes: str
    host_processors_per_node: str
    host_processor_model_name: str
    host_processor_core_count: str
    host_processor_vcpu_count: str
    host_processor_frequency: str
    host_processor_caches: str
    host_processor_interconnect: str
    host_memory_capacity: str
    host_storage_type: str
    host_storage_capacity: str
    host_networking: str
    host_networking_topology: str
    host_memory_configuration: str
    accelerators_per_node: str
    accelerator_model_name: str
    accelerator_host_interconnect: str
    accelerator_frequency: str
    accelerator_on_chip_memories: str = Field(alias="accelerator_on-chip_memories")
    accelerator_memory_configuration: str
    accelerator_memory_capacity: str
    accelerator_interconnect: str
    accelerator_interconnect_topology: str
    cooling: str
    hw_notes: str
    framework: str
    other_software_stack: str
    operating_system: str
    sw_notes: str

    @field_validator("*", mode="before")
    @classmethod
    def _nothing_is_empty_text(cls, value: Any) -> Any:
        return "" if value is None else value

    @property
    def submission_status(self) -> str:
        """The status as log lines spell it."""
        return _SUBMISSION_STATUS[self.status]
