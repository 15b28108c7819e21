# Images of the server and of a client, for amd64 and arm64:
#
#   docker build --target server -t orchestra-server .
#   docker build --target client -t orchestra-client .
#
# BASE is an image with Python 3.11 or newer and pip. One that brings its own torch for its own GPU
# (NVIDIA's images) keeps it with TORCH=base; docs/jetson.md says which images fit which board.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
# Empty: what the package index has for this processor; "torch==2.10.*": that one; "base": BASE's own.
ARG TORCH=
# Another package index, or one more: pip reads these by itself.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
# PIP_CONSTRAINT is cleared because NVIDIA's images pin packages there that Flower needs newer.
ENV PIP_CONSTRAINT= PIP_BREAK_SYSTEM_PACKAGES=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
COPY pyproject.toml deploy/requirements.py ./
# virtualenv and not venv, which Debian's and Ubuntu's Python leave out.
RUN python3 requirements.py "$TORCH" > requirements.txt \
    && python3 -m pip install virtualenv~=21.0 \
    && if [ "$TORCH" = base ]; then export VIRTUALENV_SYSTEM_SITE_PACKAGES=1; fi \
    && python3 -m virtualenv --quiet /opt/venv \
    && /opt/venv/bin/python -m pip install -r requirements.txt
COPY LICENSE README.md ./
COPY conf ./conf
COPY orchestra_flwr ./orchestra_flwr
RUN /opt/venv/bin/python -m pip install --no-deps .

FROM ${BASE} AS runtime
RUN useradd --uid 10001 --user-group --create-home --home-dir /var/lib/orchestra orchestra
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 \
    FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 RAY_USAGE_STATS_ENABLED=0
USER 10001:10001
# Keys in security/, runs in outputs/, a client's state and decoded images in .local/ and .cache/.
WORKDIR /var/lib/orchestra
STOPSIGNAL SIGTERM

FROM runtime AS server
COPY deploy/health.py /opt/
VOLUME ["/var/lib/orchestra"]
EXPOSE 8443
HEALTHCHECK --interval=30s --timeout=10s --start-period=120s \
    CMD ["python", "/opt/health.py", "8443"]
ENTRYPOINT ["orchestra-server", "host=0.0.0.0"]

FROM runtime AS client
VOLUME ["/var/lib/orchestra", "/data"]
# The client touches a file while it is connected and can take part; if not, another file says why.
HEALTHCHECK --interval=30s --timeout=10s --start-period=180s \
    CMD ["sh", "-c", "cat .local/state/orchestra_flwr/*/problem 2>/dev/null; find .local/state/orchestra_flwr/*/alive -mmin -1 | grep -q ."]
ENTRYPOINT ["orchestra-client"]
