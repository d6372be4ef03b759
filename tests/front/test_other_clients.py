"""Clients that people put in front of an OpenAI server, beside the SDK: LangChain's chat model."""

from pathlib import Path

import pytest

from tests.front.servers import ServerProcess
from tests.models import write_chain
from tests.tokenizers import byte_tokenizer

pytestmark = [pytest.mark.reference, pytest.mark.filterwarnings("ignore:::langchain.*", "ignore:::pydantic.*")]

TEXT = "Pilot!"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    vocabulary = byte_tokenizer()
    end = vocabulary.id("<|im_end|>")
    path: Path = tmp_path_factory.mktemp("models") / "chain"
    write_chain(path, [*vocabulary.bytes(TEXT), end], vocabulary, eos=end)
    with ServerProcess(path, "--api-key", "k") as server:
        yield server.ready()


def test_langchain_invokes_streams_and_batches(address):
    module = pytest.importorskip("langchain_openai")
    model = module.ChatOpenAI(model="m", base_url=f"{address}/v1", api_key="k", temperature=0, max_tokens=20)
    answer = model.invoke([("system", "Be brief."), ("human", "Hi?")])
    assert answer.content == TEXT
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.usage_metadata["output_tokens"] == len(TEXT) + 1
    assert "".join(chunk.content for chunk in model.stream("Hi?")) == TEXT
    assert [reply.content for reply in model.batch(["Hi?"] * 5)] == [TEXT] * 5


def test_langchain_reports_the_servers_own_words_for_a_refused_request(address):
    module = pytest.importorskip("langchain_openai")
    openai = pytest.importorskip("openai")
    model = module.ChatOpenAI(model="other", base_url=f"{address}/v1", api_key="k", max_retries=0)
    with pytest.raises(openai.NotFoundError, match="the model 'other' is not served here, only m"):
        model.invoke("Hi?")
