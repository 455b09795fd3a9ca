"""What becomes of a test that measures real time (`realtime`) and fails: the processor may have been busy, so it is run once more."""

import pytest
from _pytest.runner import runtestprotocol


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """It fails if it fails twice, and says then what it found each time. Its fixtures begin anew."""
    if item.get_closest_marker("realtime") is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    if failed := [report for report in reports if report.failed]:
        item.session._setupstate.teardown_exact(None)  # a fixture of the module keeps what it measured
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        for report in reports:
            if report.failed:
                report.sections.insert(0, ("the first time", "\n".join(each.longreprtext for each in failed)))
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
