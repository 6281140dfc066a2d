# A server image without a GPU:  docker build -t emberline . && docker run -p 8000:8000 -p 8001:8001 -p 8002:8002 -v $PWD/model_repo:/models emberline
FROM python:3.11-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ libnghttp2-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml CMakeLists.txt constraints.txt README.md LICENSE ./
COPY emberline emberline
COPY serving serving
COPY storage storage
COPY trainer trainer
COPY loadtest loadtest
COPY cuda cuda
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim-bookworm
RUN apt-get update && apt-get install -y --no-install-recommends libnghttp2-14 && rm -rf /var/lib/apt/lists/*
# PyTorch's CPU index holds a build a tenth of the size: --build-arg TORCH_ARGS="--index-url <that index>".
ARG TORCH_ARGS=
COPY constraints.txt /tmp/constraints.txt
COPY --from=build /wheels /tmp/wheels
RUN pip install --no-cache-dir --constraint /tmp/constraints.txt ${TORCH_ARGS} torch \
 && pip install --no-cache-dir --constraint /tmp/constraints.txt /tmp/wheels/*.whl \
 && rm -rf /tmp/wheels \
 && useradd --create-home --uid 10001 emberline \
 && install --directory --owner emberline /models /store
USER emberline
EXPOSE 8000 8001 8002
VOLUME ["/models", "/store"]
# The server's options may still be given otherwise: docker run ... emberline --host :: --tls-certificate ...
ENV EMBERLINE_MODEL_REPOSITORY=/models EMBERLINE_STORE=/store EMBERLINE_HOST=0.0.0.0
# It asks by a local socket: whatever the port, and with TLS as without.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["emberline", "health"]
ENTRYPOINT ["emberline", "serve"]
