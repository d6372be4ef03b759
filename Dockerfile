# Pilotlight with a model inside.
#
#   docker build -t pilotlight .
#   docker run --rm -p 8000:8000 pilotlight
#
# MODEL  what the image serves, and its name in the API: the demo model by default, a hub id, or a path in this
#        folder (a GGUF file or a Hugging Face directory)
# DTYPE  of the snapshot's weights: bfloat16, float16, float32, or int8 for the CPU
# EXTRAS of the package: runpod, for an endpoint with a queue
# BASE   a Debian with Python 3.11 to 3.13, pip and venv, for every stage
ARG BASE=python:3.11-slim-bookworm
ARG MODEL=smollm2-135m-instruct
ARG DTYPE=bfloat16
ARG EXTRAS=


FROM ${BASE} AS requirements
WORKDIR /src
COPY requirements.lock ./
RUN python -m venv --without-pip /venv \
 && pip --python /venv/bin/python install --no-cache-dir --no-compile --no-deps --require-hashes -r requirements.lock


# /src/ptx: the kernels' PTX, as committed or compiled anew where the sources differ, and a cubin per architecture;
# /src/kernels/cpu: the CPU library beside its sources. The compilers stay in this stage: those of the kernels and
# compiler extras that the build itself needs.
FROM requirements AS kernels
COPY constraints.txt ./
RUN pip --python /venv/bin/python install --no-cache-dir -c constraints.txt tqdm ziglang \
      nvidia-cuda-nvcc-cu12 nvidia-cuda-nvrtc-cu12 nvidia-cuda-runtime-cu12
COPY app app
COPY kernels kernels
COPY ptx committed
# A directory of an earlier layer cannot be renamed, and the build replaces its output as a whole.
RUN cp -r committed ptx && /venv/bin/python -m app build kernels && /venv/bin/python -m app build native


# /model: the snapshot. What building it needs stays in this stage.
FROM requirements AS snapshot
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY app app
COPY kernels/cpu kernels/cpu
COPY ptx ptx
RUN pip --python /venv/bin/python install --no-cache-dir -c constraints.txt '.[build]'
COPY . .
ARG MODEL
ARG DTYPE
RUN if [ "$MODEL" = smollm2-135m-instruct ]; then source=$(python scripts/get_demo_model models); else source=$MODEL; fi \
 && /venv/bin/pilotlight build snapshot "$source" --dtype "$DTYPE" -o /model


# /venv: the locked wheels and Pilotlight with its kernels, with bytecode, since a read-only container could not keep
# its own.
FROM requirements AS packages
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY app app
COPY --from=kernels /src/kernels/cpu kernels/cpu
COPY --from=kernels /src/ptx ptx
ARG EXTRAS
RUN pip --python /venv/bin/python install --no-cache-dir --no-compile --no-deps . \
 && if [ -n "$EXTRAS" ]; then \
      pip --python /venv/bin/python install --no-cache-dir --no-compile -c constraints.txt ".[$EXTRAS]"; \
    fi \
 && ln -s /venv/lib/python3*/site-packages/pilotlight /srv/app \
 && python -m compileall -q --invalidation-mode unchecked-hash /venv


FROM ${BASE}
# Python's official images carry a standard library without bytecode; compiling it at every start would cost more
# than the start.
RUN python -m compileall -q -x '/(dist-packages|ensurepip|idlelib|lib2to3|site-packages|test|tests|tkinter)/' \
      "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
COPY --from=packages /venv /venv
COPY --from=packages /srv /srv
COPY --from=snapshot /model /model
ARG MODEL
ENV PATH=/venv/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PILOTLIGHT_MODEL=/model \
    PILOTLIGHT_SERVED_MODEL_NAME=${MODEL} \
    PILOTLIGHT_HOST=0.0.0.0
WORKDIR /srv
USER 65532:65532
EXPOSE 8000
STOPSIGNAL SIGTERM
# Another port is set with PILOTLIGHT_PORT or PORT, so that this finds it too.
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen('http://127.0.0.1:' + (os.environ.get('PILOTLIGHT_PORT') or os.environ.get('PORT') or '8000') + '/health', timeout=4)"]
ENTRYPOINT ["pilotlight", "serve"]
