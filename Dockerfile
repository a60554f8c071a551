# The daemon and its workers in one image, without compiler, package manager use or root.
#
#   docker build -t genesis-fp16:0.2.0-cpu .
#   docker build -t genesis-fp16:0.2.0-cuda --build-arg DEVICE=cuda .
#
# DEVICE=cuda takes torch with CUDA's libraries, several GB; the host's driver is all else it needs.
ARG BASE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE} AS build
ARG DEVICE=cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /source
COPY constraints.txt ./
RUN python3 -m venv /opt/genesis-fp16 \
    && if [ "$DEVICE" = cpu ]; then set -- --extra-index-url https://download.pytorch.org/whl/cpu; fi \
    && /opt/genesis-fp16/bin/pip install "$@" --constraint constraints.txt torch \
    && rm -rf /opt/genesis-fp16/lib/python3*/site-packages/torch/test \
              /opt/genesis-fp16/lib/python3*/site-packages/torch/include
COPY pyproject.toml README.md LICENSE ./
COPY genesis_fp16 genesis_fp16
COPY infrastructure infrastructure
COPY agents agents

# The documentation, which the page serves under /docs.
FROM build AS docs
RUN /opt/genesis-fp16/bin/pip install --constraint constraints.txt '.[docs]'
COPY .env.example CHANGELOG.md ./
COPY docs docs
COPY deploy/prometheus deploy/prometheus
COPY deploy/alertmanager deploy/alertmanager
RUN /opt/genesis-fp16/bin/python -m sphinx -q -W -b html -d /doctrees docs /site

FROM build AS package
COPY --from=docs /site genesis_fp16/api/page/site
RUN /opt/genesis-fp16/bin/pip install --constraint constraints.txt '.[postgres]'

FROM ${BASE}
# tini is the first process: the daemon waits for its own children only, and a worker that is
# killed may leave it others.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini=0.19.* \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --user-group --home-dir /var/lib/genesis-fp16 --create-home genesis-fp16 \
    && install -d -m 0755 /etc/genesis-fp16 \
    && echo '# All defaults: mount a folder with a .env here to have it otherwise.' \
       > /etc/genesis-fp16/.env
COPY --from=package /opt/genesis-fp16 /opt/genesis-fp16
ENV PATH=/opt/genesis-fp16/bin:$PATH \
    PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    GENESIS_ENV_FILE=/etc/genesis-fp16/.env \
    GENESIS_HOME=/var/lib/genesis-fp16 \
    GENESIS_METRICS_HOST=0.0.0.0
USER 10001:10001
WORKDIR /var/lib/genesis-fp16
VOLUME /var/lib/genesis-fp16
EXPOSE 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --start-period=300s --interval=30s --timeout=5s CMD ["python3", "-c", \
    "import urllib.request as r; r.urlopen('http://127.0.0.1:9464/healthz', timeout=4)"]
ENTRYPOINT ["tini", "--", "genesis-fp16"]
CMD ["serve"]
