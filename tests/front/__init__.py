import pytest

pytest.register_assert_rewrite("tests.front.answers", "tests.front.servers")
