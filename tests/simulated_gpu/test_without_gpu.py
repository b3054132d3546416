"""What is said where torch sees no GPU."""

from infer_engine.doctor.environment import examine_environment
from infer_proofs.engine.doctor import examined


def test_gpu_that_is_asked_for_is_missed() -> None:
    finding = examined(examine_environment, device="cuda").findings["GPU"]
    assert (finding.verdict, "`device` is 'cuda'" in finding.found) == ("failed", True)
