"""Known and mandatory keys are those of mlperf-logging's rulesets."""

from pathlib import Path

import yaml
from mlperf_logging import compliance_checker

from podium.mllog.official_keys import known_keys, mandatory_keys
from podium.mllog.write import DISCLOSED_KEYS

RULESETS = Path(compliance_checker.__file__).parent


def test_keys_of_constants_and_of_rulesets_are_known() -> None:
    assert {"seed", "tflops", "start_warmup_step", *DISCLOSED_KEYS} - known_keys() == {"tflops"}
    assert "lowest_numerical_precision_linear" not in known_keys()


def test_the_keys_of_6_1_are_mandatory_for_every_benchmark_of_it_and_for_none_before() -> None:
    for division, benchmark in (("closed", "llama31_8b"), ("open", "flux1"), ("closed", "bert")):
        mandatory = mandatory_keys(division, benchmark)
        assert {mandatory[key][0] for key in DISCLOSED_KEYS} == {"6.1.0"}


def test_mandatory_keys_are_those_of_the_files_as_yaml() -> None:
    for version, division, benchmark in (("5.0.0", "closed", "bert"), ("5.1.0", "open", "flux1")):
        expected = set()
        for name in ("common", f"{division}_common", f"{division}_{benchmark}"):
            file = RULESETS / f"training_{version}" / f"{name}.yaml"
            document = yaml.safe_load(file.read_text(encoding="utf-8"))
            keys = [entry["KEY"] for entry in document if "KEY" in entry]
            expected |= {key["NAME"] for key in keys if key.get("REQ") in ("EXACTLY_ONE", "AT_LEAST_ONE")}
        mandatory = mandatory_keys(division, benchmark)
        assert {key for key, rulesets in mandatory.items() if version in rulesets} == expected
        assert len(expected) > 10


def test_names_that_are_no_files_have_the_common_keys() -> None:
    assert set(mandatory_keys("../..", "/etc/passwd")) <= set(mandatory_keys("closed", "bert"))
    assert "run_start" in mandatory_keys("../..", "/etc/passwd")
