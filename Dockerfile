# The image of a node: tenured and the command line, nothing else of ours.
#
#   docker build -t tenure .                        Debian 12
#   docker build -t tenure --build-arg BASE=debian:trixie-slim .
#
# Runs as user and group 1000 with a read-only root and without any capability; /var/lib/tenure is
# the data, /run/tenure the socket. docker-compose.yml shows three of them.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
COPY scripts/setup /src/scripts/setup
RUN /src/scripts/setup --build
COPY CMakeLists.txt CMakePresets.json /src/
COPY fsm /src/fsm
COPY raft /src/raft
COPY node /src/node
COPY client /src/client
RUN cd /src \
 && cmake --preset release -DTENURE_TESTS=OFF \
 && cmake --build --preset release \
 && DESTDIR=/out cmake --install build/release --prefix /usr --component tenure --strip \
# The shared objects that the programs want belong to packages with other names in each release.
 && ldd /out/usr/bin/tenure /out/usr/bin/tenured \
    | sed -n 's/.*=> \([^ ]*\) .*/\1/p' | xargs -n 1 realpath | sort -u \
    | xargs -n 1 dpkg-query -S | cut -d: -f1 | sort -u > /out/packages

FROM ${BASE}
COPY --from=build /out/packages /tmp/packages
RUN apt-get update \
 && xargs apt-get install -y --no-install-recommends < /tmp/packages \
 && rm -rf /tmp/packages /var/lib/apt/lists/* /var/cache/apt/* \
 && groupadd --gid 1000 tenure \
 && useradd --uid 1000 --gid 1000 --home-dir /var/lib/tenure --shell /usr/sbin/nologin tenure \
 && install -d -o 1000 -g 1000 -m 0700 /var/lib/tenure \
 && install -d -o 1000 -g 1000 -m 0755 /run/tenure
COPY --from=build /out/usr /usr
USER 1000:1000
VOLUME ["/var/lib/tenure", "/run/tenure"]
EXPOSE 7420/tcp
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=2s --timeout=3s --start-period=10s --retries=5 \
    CMD ["tenure", "--deadline", "2s", "status", "--ready"]
ENTRYPOINT ["tenured"]
