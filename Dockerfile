# rawlog in a container: docker build -t rawlog . ; docker run --rm -v /var/kafka-logs:/data:ro rawlog verify /data
# EXTRAS chooses what is installed next to the core: duckdb,lake (default: query, sql and ingest), all (Spark and its Java too), or nothing.
ARG BASE=python:3.13-slim-bookworm

# The wheel is built apart, so that no compiler is in the image.
FROM ${BASE} AS build
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /build && /build/bin/pip install --no-cache-dir build
WORKDIR /source
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src src
RUN /build/bin/python -m build --wheel --outdir /wheels .

FROM ${BASE}
ARG EXTRAS=duckdb,lake
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    python3 -m venv /opt/rawlog \
 && /opt/rawlog/bin/pip install --no-cache-dir "$(echo /wheels/rawlog-*.whl)${EXTRAS:+[$EXTRAS]}" \
 && useradd --create-home --uid 10001 rawlog
ENV PATH=/opt/rawlog/bin:$PATH
USER 10001
WORKDIR /data
ENTRYPOINT ["rawlog"]
CMD ["--help"]
