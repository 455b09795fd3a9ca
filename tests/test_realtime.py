"""A test of real time may fail once; one that fails twice says both times what it measured; no other test is repeated."""

import pytest

pytest_plugins = "pytester"

TESTS = """
    import pytest

    measured = iter(range(100))

    @pytest.fixture(scope="module")
    def seconds():
        return next(measured)

    {marker}
    def test_time(seconds):
        assert seconds >= {least}, f"it took {{seconds}} s"

    def test_after(seconds):
        pass
"""


@pytest.mark.parametrize(("marker", "least", "failed"), [("@pytest.mark.realtime", 1, 0), ("@pytest.mark.realtime", 2, 1), ("", 1, 1)])
def test_a_test_of_real_time_is_repeated_once(pytester: pytest.Pytester, marker: str, least: int, failed: int) -> None:
    pytester.makeini("[pytest]\nmarkers = realtime")
    pytester.makeconftest("from realtime import pytest_runtest_protocol")
    pytester.makepyfile(TESTS.format(marker=marker, least=least))
    ended = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    ended.assert_outcomes(passed=2 - failed, failed=failed)
    said = ended.stdout.str()
    assert ("it took 0 s" in said) == bool(failed)
    assert ("it took 1 s" in said) == (least == 2)
