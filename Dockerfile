# Pilotlight with a model inside.
#
#   docker build -t pilotlight .
#   docker run --rm -p 8000:8000 pilotlight
#
# MODEL        what the image serves, and its name in the API: the demo model by default, a hub id, or a path below
#              models/ in this folder (a GGUF file or a Hugging Face directory): --build-arg MODEL=models/mine
# DTYPE        of the snapshot's weights: bfloat16, float16, float32, or int8 for the CPU
# SHARD_BYTES  of weights in a file at most. The files are dealt out to eight layers, which are pulled side by side
# EXTRAS       of the package, with commas: runpod, for an endpoint with a queue
# REVISION     of the sources, for the image's label
# BASE         a Debian with Python 3.11 to 3.13, pip and venv, for every stage
#
# A gated model's token is a build secret: --secret id=hf_token,src=FILE. It reaches no layer.
#
# Builds with BuildKit and buildah. Each stage takes only the files that it reads, and gives its files one fixed time,
# so that a layer's digest says what is in it: after a change of the code, all layers but the last stay what they were.
# Without COPY's --parents and --exclude, variables in its paths and here-documents, which not all builders know.
ARG BASE=python:3.11-slim-bookworm
ARG MODEL=smollm2-135m-instruct
ARG DTYPE=bfloat16
ARG SHARD_BYTES=2G
ARG EXTRAS=


FROM ${BASE} AS requirements
WORKDIR /src
COPY requirements.lock ./
RUN python -m venv --without-pip /venv \
 && pip --python /venv/bin/python install --no-cache-dir --no-compile --no-deps --require-hashes -r requirements.lock


# /venv: the locked wheels, trimmed, with bytecode, since a read-only container could not keep its own: of the kind that
# is not compared with the source's time. `python -m pip` is the base's, for platforms that add packages.
FROM requirements AS wheels
COPY scripts/image/trim.py ./
RUN python trim.py /venv
COPY constraints.txt pyproject.toml ./
ARG EXTRAS
RUN python -c "import tomllib; extras = tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']; \
print(*(name for extra in '$EXTRAS'.split(',') if extra for name in extras[extra.strip()]), sep='\n')" >extras.txt \
 && pip --python /venv/bin/python install --no-cache-dir --no-compile -c constraints.txt -r extras.txt \
 && python -m compileall -qf --invalidation-mode unchecked-hash /venv \
 && ln -s "$(python -c 'import pip; print(*pip.__path__)')" "$(echo /venv/lib/python3*/site-packages)/pip" \
 && printf '#!/bin/sh\nexec /venv/bin/python -m pip "$@"\n' >/venv/bin/pip && chmod +x /venv/bin/pip \
 && find /venv -exec touch --no-dereference --date=2000-01-01 {} +


# /layer: the kernels' PTX, as committed or compiled anew where the sources differ, and a cubin per architecture, where
# they belong in /venv. The compilers are wheels and stay in this stage.
FROM requirements AS kernels
COPY constraints.txt ./
RUN pip --python /venv/bin/python install --no-cache-dir -c constraints.txt tqdm \
      nvidia-cuda-nvcc-cu12 nvidia-cuda-nvrtc-cu12 nvidia-cuda-runtime-cu12
COPY app/*.py app/
COPY app/build app/build
COPY app/device/__init__.py app/device/layout.py app/device/
COPY kernels kernels
COPY ptx committed
# A directory of an earlier layer cannot be renamed, and the build replaces its output as a whole.
RUN cp -r committed ptx && /venv/bin/python -m app build kernels \
 && place="/layer$(/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/pilotlight" \
 && mkdir -p "$place" && cp -r ptx "$place/ptx" \
 && find /layer -exec touch --no-dereference --date=2000-01-01 {} +


# /layer: the CPU library, compiled from C++.
FROM requirements AS native
COPY constraints.txt ./
RUN pip --python /venv/bin/python install --no-cache-dir -c constraints.txt ziglang
COPY app/*.py app/
COPY app/build app/build
COPY app/device/__init__.py app/device/native_*.py app/device/
COPY kernels/cpu kernels/cpu
RUN /venv/bin/python -m app build native \
 && place="/layer$(/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/pilotlight/cpu" \
 && mkdir -p "$place" && cp kernels/cpu/*.so "$place" \
 && find /layer -exec touch --no-dereference --date=2000-01-01 {} +


# /layers/1: the snapshot, whose files of weights but the first are dealt out to /layers/2 to /layers/8. What building
# it needs stays in this stage.
FROM requirements AS snapshot
COPY constraints.txt ./
RUN pip --python /venv/bin/python install --no-cache-dir -c constraints.txt huggingface_hub tqdm
COPY app/*.py app/
COPY app/build app/build
COPY app/device/__init__.py app/device/base.py app/device/layout.py app/device/
COPY app/model app/model
COPY app/text app/text
COPY scripts/get_demo_model scripts/
COPY models models
ARG MODEL
ARG DTYPE
ARG SHARD_BYTES
RUN --mount=type=secret,id=hf_token \
    if [ -f /run/secrets/hf_token ]; then HF_TOKEN=$(cat /run/secrets/hf_token); export HF_TOKEN; fi \
 && if [ "$MODEL" = smollm2-135m-instruct ]; then source=$(python scripts/get_demo_model models); else source=$MODEL; fi \
 && /venv/bin/python -m app build snapshot "$source" --dtype "$DTYPE" --shard-bytes "$SHARD_BYTES" -o /layers/1 \
 && mkdir /layers/2 /layers/3 /layers/4 /layers/5 /layers/6 /layers/7 /layers/8 \
 && number=0 \
 && for file in /layers/1/weights*.safetensors; do \
      layer=$((number % 8 + 1)); number=$((number + 1)); \
      if [ "$layer" != 1 ]; then mv "$file" /layers/$layer/; fi; \
    done \
 && find /layers -exec touch --no-dereference --date=2000-01-01 {} +


# /layer: Pilotlight itself, with bytecode, where it belongs in /venv.
FROM requirements AS code
COPY constraints.txt ./
RUN pip --python /venv/bin/python install --no-cache-dir -c constraints.txt setuptools
COPY pyproject.toml README.md LICENSE ./
COPY app app
COPY scripts/image/entrypoint ./
# Its package of the kernels is empty here: they are a layer of their own.
RUN mkdir -p ptx kernels/cpu \
 && pip --python /venv/bin/python install --no-cache-dir --no-compile --no-deps --no-build-isolation --prefix /layer/venv . \
 && cp entrypoint /layer/venv/bin/ \
 && ln -s pilotlight "$(echo /layer/venv/lib/python3*/site-packages)/app" \
 && /venv/bin/python -m compileall -qf --invalidation-mode unchecked-hash -s /layer /layer/venv/lib/python3*/site-packages/pilotlight \
 && find /layer -exec touch --no-dereference --date=2000-01-01 {} +


FROM ${BASE}
# Python's official images carry a standard library without bytecode; compiling it at every start would cost more
# than the start.
RUN python -m compileall -q -x '/(dist-packages|ensurepip|idlelib|lib2to3|site-packages|test|tests|tkinter)/' \
      "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
WORKDIR /srv
# By how seldom they change: whoever pulls the next version has most of them already.
COPY --from=wheels /venv /venv
COPY --from=kernels /layer/venv /venv
COPY --from=native /layer/venv /venv
COPY --from=snapshot /layers/1 /model
COPY --from=snapshot /layers/2 /model
COPY --from=snapshot /layers/3 /model
COPY --from=snapshot /layers/4 /model
COPY --from=snapshot /layers/5 /model
COPY --from=snapshot /layers/6 /model
COPY --from=snapshot /layers/7 /model
COPY --from=snapshot /layers/8 /model
COPY --from=code /layer/venv /venv
ARG MODEL
ARG REVISION=
# The driver's libraries come with the container's runtime, on Google's platforms in a directory of their own. What the
# driver keeps of PTX that it compiled goes where a read-only container may write.
ENV PATH=/venv/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    LD_LIBRARY_PATH=/usr/local/nvidia/lib64 \
    CUDA_CACHE_PATH=/tmp/cuda \
    PILOTLIGHT_MODEL=/model \
    PILOTLIGHT_SERVED_MODEL_NAME=${MODEL} \
    PILOTLIGHT_HOST=0.0.0.0
LABEL org.opencontainers.image.title="Pilotlight" \
      org.opencontainers.image.description="An LLM inference server for scale-to-zero GPUs, with a model inside" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${REVISION}"
# A platform may run it as another user, root among them: no file belongs to this one, and /tmp is all that is written.
USER 65532:65532
EXPOSE 8000
STOPSIGNAL SIGTERM
# Another port is set with PILOTLIGHT_PORT or PORT, so that this finds it too. By a socket alone: importing an HTTP client
# every ten seconds would take the server's CPU.
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s CMD ["python", "-S", "-c", "import os, socket; line = socket.create_connection(('127.0.0.1', int(os.environ.get('PILOTLIGHT_PORT') or os.environ.get('PORT') or 8000)), 4); line.sendall(b'GET /health HTTP/1.0\\r\\n\\r\\n'); raise SystemExit(b' 200 ' not in line.recv(64))"]
ENTRYPOINT ["/venv/bin/entrypoint"]
