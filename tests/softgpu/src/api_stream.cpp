// Streams and events.
#include <algorithm>
#include <chrono>

#include "config.hpp"
#include "counters.hpp"
#include "driver.hpp"
#include "findings.hpp"

using namespace soft;

namespace {

constexpr int kGreatestPriority = -5;

int create_stream(const char* name, void** out, unsigned flags, int priority) {
  return call(name, kContext, [&](Call& call) -> int {
    require(out != nullptr && flags <= 1, kInvalidValue);
    auto stream = std::make_unique<Stream>();
    stream->context = &call.context();
    stream->id = driver().next_id++;
    stream->flags = flags;
    stream->priority = std::clamp(priority, kGreatestPriority, 0);
    *out = driver().streams.add(std::move(stream));
    return kSuccess;
  });
}

// Work whose end the caller asks about: all that the stream holds now.
OperationPtr newest(Stream& stream) {
  if (!stream.legacy) return stream.last;
  return driver().queue.add(EmptyWork{}, predecessors(stream), "null stream");
}

void refuse_capturing(Stream& stream) {
  check_implicit(stream);
  if (stream.capture == nullptr) return;
  invalidate(*stream.capture);
  throw Failure{kCaptureUnsupported};
}

// An event of a capture has no time at which it happens; a query of it ends the capture.
void refuse_captured(Event& event) {
  if (!event.in_capture) return;
  if (const auto capture = event.capture.lock()) invalidate(*capture);
  throw Failure{kCapturedEvent};
}

template <class Read>
int read_stream(const char* name, void* handle, bool good, Read read) {
  return call(name, kContext, [&](Call& call) -> int {
    require(good, kInvalidValue);
    read(stream_of(call, handle));
    return kSuccess;
  });
}

int record(const char* name, void* event_handle, void* stream_handle, unsigned flags) {
  return call(name, kContext, [&](Call& call) -> int {
    require(flags == 0, flags == 1 ? kNotSupported : kInvalidValue);
    Event& event = driver().events.get(event_handle);
    Stream& stream = stream_of(call, stream_handle);
    require(event.context == stream.context, kInvalidHandle);
    check_implicit(stream);
    event.in_capture = stream.capture != nullptr;
    if (event.in_capture) {
      require(!stream.capture->invalid, kCaptureInvalidated);
      event.capture = stream.capture;
      event.nodes = stream.tail;
      event.recorded = nullptr;
    } else {
      event.recorded = enqueue(call, stream, EmptyWork{});
    }
    return kSuccess;
  });
}

void add_tail(Stream& stream, const std::vector<GraphNode*>& nodes) {
  for (GraphNode* node : nodes) {
    if (std::find(stream.tail.begin(), stream.tail.end(), node) == stream.tail.end()) stream.tail.push_back(node);
  }
}

// A capturing stream may wait for events of its own capture only.
void wait_in_capture(Stream& stream, Event& event) {
  require(!stream.capture->invalid, kCaptureInvalidated);
  const auto other = event.capture.lock();
  if (event.in_capture && other == stream.capture) return add_tail(stream, event.nodes);
  invalidate(*stream.capture);
  if (event.in_capture && other != nullptr) {
    invalidate(*other);
    throw Failure{kCaptureMerge};
  }
  throw Failure{event.in_capture ? kCapturedEvent : kCaptureIsolation};
}

// A stream that waits for an event of a capture becomes part of it.
void join_capture(Stream& stream, Event& event) {
  const auto capture = event.capture.lock();
  const auto& active = driver().captures;
  require(capture != nullptr && std::find(active.begin(), active.end(), capture) != active.end(), kCapturedEvent);
  require(!capture->invalid, kCaptureInvalidated);
  if (stream.legacy) {
    invalidate(*capture);
    throw Failure{kCaptureImplicit};
  }
  stream.capture = capture;
  stream.tail = event.nodes;
  capture->streams.push_back(&stream);
}
}  // namespace

SOFT_API int cuStreamCreate(void** out, unsigned flags) { return create_stream("cuStreamCreate", out, flags, 0); }
SOFT_API int cuStreamCreateWithPriority(void** out, unsigned flags, int priority) {
  return create_stream("cuStreamCreateWithPriority", out, flags, priority);
}

SOFT_API int cuStreamDestroy_v2(void* handle) {
  return call("cuStreamDestroy", kContext, [&](Call&) -> int {
    Stream& stream = driver().streams.get(handle);
    if (stream.capture != nullptr) {
      const auto capture = stream.capture;
      invalidate(*capture);
      std::erase(capture->streams, &stream);
      if (capture->origin == &stream) leave_capture(*capture);
    }
    if (stream.last != nullptr && stream.blocking()) stream.context->orphans.push_back(stream.last);
    driver().streams.remove(&stream);
    return kSuccess;
  });
}

SOFT_API int cuStreamSynchronize(void* handle) {
  return call("cuStreamSynchronize", kContext, [&](Call& call) -> int {
    Stream& stream = stream_of(call, handle);
    refuse_capturing(stream);
    require(!capture_forbids(call), kCaptureUnsupported);
    driver_counters().synchronizations++;
    driver().queue.wait(call, newest(stream));
    return driver().sticky;
  });
}

SOFT_API int cuStreamQuery(void* handle) {
  return call("cuStreamQuery", kContext, [&](Call& call) -> int {
    Stream& stream = stream_of(call, handle);
    refuse_capturing(stream);
    require(!capture_forbids(call), kCaptureUnsupported);
    const bool done = driver().queue.poll(call, newest(stream));
    require(driver().sticky == 0, driver().sticky);
    return done ? kSuccess : kNotReady;
  });
}

SOFT_API int cuStreamWaitEvent(void* stream_handle, void* event_handle, unsigned flags) {
  return call("cuStreamWaitEvent", kContext, [&](Call& call) -> int {
    require(flags == 0, flags == 1 ? kNotSupported : kInvalidValue);
    Stream& stream = stream_of(call, stream_handle);
    Event& event = driver().events.get(event_handle);
    check_implicit(stream);
    if (!event.in_capture && event.recorded == nullptr) {
      finding("event-never-recorded", "a stream waits for an event that was never recorded: it waits for nothing",
              call.name);
      return kSuccess;
    }
    if (stream.capture != nullptr) {
      wait_in_capture(stream, event);
    } else if (event.in_capture) {
      join_capture(stream, event);
    } else if (event.recorded->state != State::Done) {
      auto before = predecessors(stream);
      before.push_back(event.recorded);
      stream.last = driver().queue.add(EmptyWork{}, std::move(before), call.name);
    }
    return kSuccess;
  });
}

SOFT_API int cuStreamGetFlags(void* handle, unsigned* out) {
  return read_stream("cuStreamGetFlags", handle, out != nullptr, [&](Stream& stream) { *out = stream.flags; });
}
SOFT_API int cuStreamGetPriority(void* handle, int* out) {
  return read_stream("cuStreamGetPriority", handle, out != nullptr, [&](Stream& stream) { *out = stream.priority; });
}
SOFT_API int cuStreamGetId(void* handle, uint64_t* out) {
  return read_stream("cuStreamGetId", handle, out != nullptr, [&](Stream& stream) { *out = stream.id; });
}
SOFT_API int cuStreamGetCtx(void* handle, void** out) {
  return read_stream("cuStreamGetCtx", handle, out != nullptr, [&](Stream& stream) { *out = stream.context; });
}
SOFT_API int cuStreamGetDevice(void* handle, int* out) {
  return read_stream("cuStreamGetDevice", handle, out != nullptr,
                     [&](Stream& stream) { *out = stream.context->device; });
}

// --- events ------------------------------------------------------------------------------------------------------

SOFT_API int cuEventCreate(void** out, unsigned flags) {
  return call("cuEventCreate", kContext, [&](Call& call) -> int {
    require(out != nullptr && (flags & ~7u) == 0, kInvalidValue);
    require((flags & 4u) == 0, kNotSupported);  // an event that processes share
    auto event = std::make_unique<Event>();
    event->context = &call.context();
    event->flags = flags;
    *out = driver().events.add(std::move(event));
    return kSuccess;
  });
}

SOFT_API int cuEventDestroy_v2(void* handle) {
  return call("cuEventDestroy", kContext, [&](Call&) -> int {
    driver().events.remove(&driver().events.get(handle));
    return kSuccess;
  });
}

SOFT_API int cuEventRecord(void* event, void* stream) { return record("cuEventRecord", event, stream, 0); }
SOFT_API int cuEventRecordWithFlags(void* event, void* stream, unsigned flags) {
  return record("cuEventRecordWithFlags", event, stream, flags);
}

SOFT_API int cuEventQuery(void* handle) {
  return call("cuEventQuery", kContext, [&](Call& call) -> int {
    Event& event = driver().events.get(handle);
    refuse_captured(event);
    require(!capture_forbids(call), kCaptureUnsupported);
    const bool done = driver().queue.poll(call, event.recorded);
    require(driver().sticky == 0, driver().sticky);
    return done ? kSuccess : kNotReady;
  });
}

SOFT_API int cuEventSynchronize(void* handle) {
  return call("cuEventSynchronize", kContext, [&](Call& call) -> int {
    Event& event = driver().events.get(handle);
    refuse_captured(event);
    require(!capture_forbids(call), kCaptureUnsupported);
    driver_counters().synchronizations++;
    driver().queue.wait(call, event.recorded);
    return driver().sticky;
  });
}

SOFT_API int cuEventElapsedTime_v2(float* milliseconds, void* begin_handle, void* end_handle) {
  return call("cuEventElapsedTime", kContext, [&](Call&) -> int {
    require(milliseconds != nullptr, kInvalidValue);
    Event& begin = driver().events.get(begin_handle);
    Event& end = driver().events.get(end_handle);
    for (Event* event : {&begin, &end}) {
      refuse_captured(*event);
      require(event->timed() && event->recorded != nullptr, kInvalidHandle);
    }
    require(begin.recorded->state == State::Done && end.recorded->state == State::Done, kNotReady);
    *milliseconds =
        std::chrono::duration<float, std::milli>(end.recorded->finished - begin.recorded->finished).count();
    return kSuccess;
  });
}
SOFT_API int cuEventElapsedTime(float* milliseconds, void* begin, void* end) {
  return cuEventElapsedTime_v2(milliseconds, begin, end);
}
