"""Any course of events leads to the rules that the final state leads to when it is given at once."""

import pytest
from hypothesis.stateful import run_state_machine_as_test

from nodeproxy.kube.addresses import Family
from nodeproxy.model.settings import EndpointChains

from .course import Course
from .profiles import effort


class _Pretended(Course):
    """Either family, the way endpoints are reached may change with a restart."""


_Pretended.TestCase.settings = effort(160, steps=25)
TestAnyCourseOfEvents = _Pretended.TestCase


@pytest.mark.parametrize("chains", ["WhenAffinity", "Always"])
@pytest.mark.parametrize("family", Family, ids=lambda family: family.label)
def test_real_kernel_takes_any_course_of_events_and_reads_back_as_planned(
    family: Family, chains: EndpointChains
) -> None:
    """Each transaction is accepted; rules, elements, slots, affinity sets and their timeouts come back as planned."""

    class _Real(Course):
        families, real = (family,), True

    _Real.chains = (chains,)
    run_state_machine_as_test(_Real, settings=effort(20, steps=20))
