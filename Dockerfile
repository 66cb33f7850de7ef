# The image of the service, of `discovery register` beside a relay, and of everything else that the program does.
#
#   docker build --build-arg REVISION=$(git rev-parse HEAD) --build-arg CREATED=$(date -u +%FT%TZ) -t discovery .
#
# It runs as any user, with a read-only root file system and no place to write to; nothing in it needs a shell. Tests
# carry these steps out without an engine, so they keep to what is used here.

ARG PYTHON_IMAGE=docker.io/library/python:3.13-slim-trixie

FROM ${PYTHON_IMAGE} AS build
# The exact versions hold for the build backend too: newer versions of pip read the second variable for that.
ENV PIP_CONSTRAINT=/src/constraints.txt \
    PIP_BUILD_CONSTRAINT=/src/constraints.txt \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY discovery discovery
RUN python -m venv --without-pip /opt/discovery && \
    python -m pip --python /opt/discovery/bin/python install --quiet --no-compile --only-binary :all: ".[server,dynamodb,tracing]"

FROM ${PYTHON_IMAGE}
COPY --from=build /opt/discovery /opt/discovery
# No installer stays. What a start imports is imported once, while its bytecode can still be written down.
RUN python -c "import ensurepip, shutil; shutil.rmtree(ensurepip.__path__[0])" && \
    python -m pip uninstall --quiet --yes --root-user-action ignore pip && \
    /opt/discovery/bin/python -c "import discovery.commands.register, discovery.commands.serve, discovery.http.openapi, discovery.mcs.kube, discovery.stores.redis.store, discovery.stores.dynamodb.store"
ENV PATH=/opt/discovery/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
ARG PYTHON_IMAGE
ARG VERSION=0.1.0
ARG REVISION=""
ARG CREATED=""
ARG SOURCE=""
LABEL org.opencontainers.image.title="discovery" \
      org.opencontainers.image.description="Service discovery for pools of language-model servers in many Kubernetes clusters" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.base.name="${PYTHON_IMAGE}"
WORKDIR /
# A number, so that a cluster can see that it is not root. Any other user will do as well: nothing belongs to this one.
USER 65532:0
EXPOSE 8080
# Clusters have probes of their own (/healthz, /readyz); and not every command of this image listens.
HEALTHCHECK NONE
ENTRYPOINT ["discovery"]
CMD ["serve"]
