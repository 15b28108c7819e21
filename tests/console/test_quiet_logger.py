import logging

import pytest

from orchestra_flwr.console.quiet_logger import quiet_logger


@pytest.mark.parametrize("name", [None, "orchestra_flwr.quiet"])
def test_a_logger_is_quiet_until_the_block_ends_however_it_ends(name, caplog):
    logger = logging.getLogger(name)
    with pytest.raises(OSError), quiet_logger(name, logging.ERROR):
        logger.warning("kept back")
        logger.error("shown")
        raise OSError
    logger.warning("shown again")
    assert caplog.messages == ["shown", "shown again"]
