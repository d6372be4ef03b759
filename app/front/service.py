"""What every endpoint works with: the model's text side, the engine behind its supervisor, the queue's bound.

The life of a request passes through here once: model name, prompt to token ids off the event loop, every check,
and then a `Generation`. Nothing has been sent to the client before that.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.types import Receive

from ..messages import Ready
from ..params import ParameterError, SamplingParams, check_prompt, generation_defaults, to_sampling
from ..settings import Settings
from .body import until_gone
from .drain import Drain
from .errors import ApiError, ClientGone, from_parameter, invalid, unavailable
from .generation import Generation
from .metrics import Metrics
from .startup import Startup
from .supervisor import Supervisor

if TYPE_CHECKING:
    from ..text.assets import Text
    from ..text.tokenizer import Tokenizer

# A text this many times longer than the context (characters per token) is tokenised in part first: natural text
# has 2 to 5 characters per token, so nearly all that is too long is refused for the price of a full context.
_CHARACTERS_PER_TOKEN = 16
TOO_LONG = "context_length_exceeded"  # OpenAI's code

_Result = TypeVar("_Result")


class Service:
    def __init__(self, settings: Settings, names: Sequence[str], supervisor: Supervisor, startup: Startup) -> None:
        """`names` are those under which the model is served, the first one is its own."""
        self.settings = settings
        self.names = tuple(names)
        self.supervisor = supervisor
        self.startup = startup
        self.metrics = Metrics()
        self.drain = Drain()
        self.created = int(time.time())
        self.defaults: dict[str, Any] = {}  # the model's own, for SamplingParams
        self._text: asyncio.Future[Text] = asyncio.get_running_loop().create_future()
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="text")
        self._held = 0  # sequences of requests that wait for the engine to start
        self._next_id = 0

    def set_text(self, text: "Text") -> None:
        """The model's text side is loaded. Raises ModelDataError for defaults that no request could set."""
        self.defaults = generation_defaults(text.generation)
        self._text.set_result(text)

    async def text_ready(self) -> "Text":
        self.startup.mark("read request")
        text = await asyncio.shield(self._text)
        self.startup.mark("wait for text", after="text")
        return text

    def check_model(self, name: str) -> None:
        if name not in self.names:
            known = ", ".join(self.names)
            raise ApiError(
                404,
                f"the model {name[:200]!r} is not served here, only {known}",
                param="model",
                code="model_not_found",
            )

    async def in_pool(self, work: Callable[[], _Result]) -> _Result:
        """Runs what may take long (a template, a tokeniser) beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def ready(self, sequences: int, receive: Receive) -> Ready:
        """The engine, awaited while it starts and the client waits too.

        Raises ApiError where there is no place for so many sequences, ClientGone.
        """
        self._check_room(sequences)
        if self.supervisor.ready is not None:
            return self.supervisor.ready
        self.startup.mark("parse")
        self._held += sequences
        gone = asyncio.create_task(until_gone(receive))
        ready = asyncio.create_task(self.supervisor.wait_ready())
        try:
            await asyncio.wait({ready, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                raise ClientGone
            return ready.result()
        finally:
            gone.cancel()
            ready.cancel()
            self._held -= sequences
            self.startup.mark("wait for ready", after="wait for engine")

    def start(
        self,
        text: "Text",
        prompts: Sequence[list[int]],
        params: SamplingParams,
        *,
        ready: Ready,
        priority: int,
        arrived: float,
        field_names: Mapping[str, str],
    ) -> Generation:
        """Checks what the model bounds and starts the request. Raises ApiError.

        `field_names` has the API's names of SamplingParams' fields and of the prompt, where they differ.
        """
        self.startup.mark("tokenize")
        self._check_room(len(prompts) * params.n)
        samplings = []
        for prompt in prompts:
            try:
                room = check_prompt(prompt, vocab_size=ready.vocab_size, max_model_len=context_of(ready))
                sampling = to_sampling(
                    params,
                    room=room,
                    vocab_size=ready.vocab_size,
                    max_logprobs=self.settings.max_logprobs,
                    eos_token_ids=text.eos_token_ids,
                    default_seed=self.settings.seed,
                )
            except ParameterError as error:
                code = TOO_LONG if len(prompt) >= context_of(ready) else None
                raise from_parameter(error, code, **field_names) from None
            samplings.append(sampling)
        generation = Generation(
            self.supervisor,
            self.metrics,
            text,
            prompts,
            samplings,
            params,
            priority=priority,
            first_id=self._next_id,
            arrived=arrived,
        )
        self._next_id += len(generation.choices)
        self.startup.mark("submit")
        generation.start()
        return generation

    def _check_room(self, sequences: int) -> None:
        capacity = self.settings.max_num_seqs + self.settings.max_waiting_requests
        if sequences > capacity:
            raise invalid(
                f"n: {sequences} sequences (prompts times n) are asked for, this server takes {capacity}", "n"
            )
        if self.supervisor.outstanding + self._held + sequences > capacity:
            self.metrics.rejected += 1
            raise unavailable("too many requests are waiting; retry shortly", "queue_full")

    def stop_waiting(self) -> None:
        """Turns away the requests that wait for a start that will not be finished."""
        self.supervisor.stop_waiting()
        if not self._text.done():
            self._text.set_exception(self.supervisor.not_ready())
            self._text.exception()  # nobody may be waiting

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def context_of(ready: Ready) -> int:
    """Tokens of prompt and answer together: the model's limit, or what the KV pool holds if that is less."""
    return min(ready.max_model_len, ready.pages * ready.page_size)


def encode(tokenizer: "Tokenizer", text: str, limit: int, *, add_special_tokens: bool, field: str) -> list[int]:
    """The ids of `text`. Raises ApiError, and cheaply, for one that is far too long for `limit` tokens."""
    head = limit * _CHARACTERS_PER_TOKEN
    if len(text) > 2 * head and len(tokenizer.encode(text[:head], add_special_tokens=False)) > limit:
        raise invalid(
            f"{field}: {len(text)} characters are more than this model's context of {limit} tokens holds",
            field,
            TOO_LONG,
        )
    return tokenizer.encode(text, add_special_tokens=add_special_tokens)
