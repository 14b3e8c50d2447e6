# The official PostgreSQL image with idem_inbox, preloaded. It has been built
# nowhere yet: no registry of images can be reached from where this project is
# tested. Its steps are those of the README.
#
#     docker build -t postgres-idem-inbox .
#     docker build --build-arg PG_MAJOR=17 -t postgres-idem-inbox:17 .

ARG PG_MAJOR=15

FROM postgres:${PG_MAJOR} AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev make "postgresql-server-dev-$PG_MAJOR" \
    && rm -rf /var/lib/apt/lists/*
COPY . /idem_inbox
RUN make -C /idem_inbox PG_CONFIG="/usr/lib/postgresql/$PG_MAJOR/bin/pg_config" DESTDIR=/dest install

FROM postgres:${PG_MAJOR}
COPY --from=build /dest/ /
# For databases that docker-entrypoint.sh creates; in one that is there already,
# run CREATE EXTENSION idem_inbox.
RUN echo 'CREATE EXTENSION idem_inbox;' >/docker-entrypoint-initdb.d/idem_inbox.sql
CMD ["postgres", "-c", "shared_preload_libraries=idem_inbox"]
