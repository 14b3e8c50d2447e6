# A throw-away copy, build and server, for the scripts behind "make check",
# "make demo" and the like.  A script sources this and says
#
#     sandbox_enter "PACKAGE..." "$@"
#     sandbox_build [VARIABLE=VALUE...]
#     sandbox_start [SETTING...]
#
# sandbox_enter installs what is missing (unless SANDBOX_INSTALLS=no), copies
# the work tree to a temporary directory and runs the script once more inside;
# there it returns at once.
# Inside is an ordinary user (initdb refuses root) with an environment of
# known content, $sandbox is the temporary directory and $sandbox/src the
# copy.  Outside stays behind and cleans up, however the script ends.
#
# $top is the work tree.  Everything that these functions have to say goes to
# standard error.

# The packages that any build needs; the server's are found below.
sandbox_packages="gcc libc6-dev make"

# What of the copy is brought back into the work tree if the script succeeds.
sandbox_results=""

# Modules for Node.js, installed in the sandbox.
sandbox_npm=""

# What of the caller's environment or "make" command line goes inside.
sandbox_keep="CI TERM COPT PG_CONFIG TESTS REGRESS ISOLATION PROVE_TESTS STRESS_SECONDS CRASH_ROUNDS CRASH_SEED \
    LEAK_CALLS RANDOM_CALLS RANDOM_SEED FUZZ_SECONDS TARGETS"

die()
{
    echo "$0: $*" >&2
    exit 1
}

as_root()
{
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "neither root nor sudo, please run as root: $*"
    fi
}

is_installed()
{
    dpkg-query -W -f '${db:Status-Status}\n' "$1" 2>/dev/null |
        grep -qx installed
}

# is_there PACKAGE or COMMAND=PACKAGE
is_there()
{
    case $1 in
        *=*) command -v "${1%%=*}" >/dev/null ;;
        *) is_installed "$1" ;;
    esac
}

# apt_install PACKAGE...: installs packages without asking anything, and without
# starting the services that they bring.
apt_install()
{
    local output policy=/usr/sbin/policy-rc.d

    echo "installing $*" >&2
    output=$(
        # a trap of the subshell's own: gone with it, however it ends
        if [ ! -e "$policy" ]; then
            trap 'as_root rm -f "$policy"' EXIT
            trap 'exit 1' HUP INT TERM
            printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
            as_root chmod +x "$policy"
        fi
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y \
            -o Dpkg::Use-Pty=0 --no-install-recommends install "$@" 2>&1
    ) || { echo "$output" >&2; die "could not install $*"; }
}

# The server's package makes a cluster and starts it, which nobody asked for:
# tell it not to while it is installed.
install_server()
{
    local conf=/etc/postgresql-common/createcluster.conf

    apt_install postgresql-common
    as_root cp -p "$conf" "$conf.idem_inbox"
    trap 'as_root mv "$conf.idem_inbox" "$conf"' EXIT
    echo "create_main_cluster = off" | as_root tee -a "$conf" >/dev/null
    apt_install "$@"
    as_root mv "$conf.idem_inbox" "$conf"
    trap - EXIT
}

# Installs the packages named, what a build needs and, unless PG_CONFIG names
# another server, PostgreSQL: the newest one that is there, else the one of
# this Debian release.  Sets PG_CONFIG.  In a package's name % stands for the
# server's major version; such a package is left out where there is none.
# COMMAND=PACKAGE is for a command that may also have come from elsewhere.
install_missing()
{
    local package major='' missing='' server='' updated=''

    if ! command -v dpkg-query >/dev/null; then
        echo "not a Debian system: $* $sandbox_packages must be there" >&2
        PG_CONFIG=${PG_CONFIG:-pg_config}
        return
    fi

    if [ -z "${PG_CONFIG:-}" ]; then
        for major in 18 17 16 15 ''; do
            is_installed "postgresql-$major" && break
        done
        if [ -z "$major" ]; then
            as_root apt-get -qq update >&2
            updated=yes
            major=$(apt-cache depends postgresql |
                sed -n 's/.*Depends: postgresql-\([0-9]*\)$/\1/p' | head -1)
            server=postgresql-$major
        fi
        PG_CONFIG=/usr/lib/postgresql/$major/bin/pg_config
        set -- "$@" "postgresql-server-dev-$major"
    fi

    for package in $sandbox_packages "$@"; do
        [[ $package == *%* ]] || is_there "$package" ||
            missing="$missing ${package#*=}"
    done
    if [ -n "$server$missing" ] && [ -z "$updated" ]; then
        as_root apt-get -qq update >&2
    fi
    for package; do
        [[ $package == *%* && -n $major ]] || continue
        package=${package/\%/$major}
        is_installed "$package" || ! apt-cache show "$package" &>/dev/null ||
            missing="$missing $package"
    done
    if [ -n "$server" ]; then
        install_server "$server"
    fi
    if [ -n "$missing" ]; then
        apt_install $missing
    fi
}

sandbox_enter()
{
    local packages=$1 name tmp=/tmp script lock keep=() as=()

    shift
    if [ -n "${IDEM_SANDBOX:-}" ]; then
        sandbox=$IDEM_SANDBOX
        return
    fi

    if [ "${SANDBOX_INSTALLS:-yes}" = yes ]; then
        # one script after the other
        exec {lock}<"$top/test/lib/sandbox.sh"
        flock "$lock"
        install_missing $packages
        exec {lock}<&-
    fi

    if [ "$(id -u)" -eq 0 ]; then
        id postgres >/dev/null || die "root, and no user postgres to become"
        as=(setpriv --reuid=postgres --regid=postgres --init-groups)
    else
        tmp=${TMPDIR:-/tmp}
    fi

    sandbox=$(mktemp -d "$tmp/idem_inbox.XXXXXX")
    trap sandbox_leave EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    if [ "$(id -u)" -eq 0 ]; then
        chown postgres: "$sandbox"
    fi

    "${as[@]}" mkdir "$sandbox/src" "$sandbox/tmp"
    tar -C "$top" -cf - --exclude=./.git --exclude='*.o' --exclude='*.so' \
        --exclude='*.bc' --exclude=./log --exclude=./output_iso \
        --exclude=./results --exclude='./tmp_check*' . |
        "${as[@]}" tar -C "$sandbox/src" -xf -

    # By the caller, whose settings say where from.
    if [ -n "$sandbox_npm" ] && command -v npm >/dev/null; then
        npm install --prefix "$sandbox" --no-audit --no-fund \
            --loglevel=error $sandbox_npm >&2 || die "could not npm install"
    fi

    for name in $sandbox_keep; do
        if [ -n "${!name+set}" ]; then
            keep+=("$name=${!name}")
        fi
    done

    # A process group of its own, so that it can be ended as a whole.
    script=$(realpath --relative-to="$top" "$0")
    set -m
    "${as[@]}" env -i -C "$sandbox/src" IDEM_SANDBOX="$sandbox" \
        HOME="$sandbox" TMPDIR="$sandbox/tmp" LC_ALL=C.UTF-8 "${keep[@]}" \
        NODE_PATH="$sandbox/node_modules" \
        PATH="$("$PG_CONFIG" --bindir):/usr/local/bin:/usr/bin:/bin" \
        "$sandbox/src/$script" "$@" </dev/null &
    set +m
    sandbox_job=$!
    wait "$sandbox_job" || exit $?
    for name in $sandbox_results; do
        rm -rf "${top:?}/$name"
        cp -r "$sandbox/src/$name" "$top/$name"
    done
    exit 0
}

# Ends whatever the script has left running, and removes the sandbox.
sandbox_leave()
{
    local file pid tries

    trap '' INT TERM HUP
    if [ -n "${sandbox_job:-}" ]; then
        kill -TERM -- "-$sandbox_job" 2>/dev/null || true
        wait "$sandbox_job" 2>/dev/null || true
    fi

    # A pid file that a killed server left behind may name a stranger by now;
    # a server's working directory is its data directory.
    find "$sandbox" -name postmaster.pid | while read -r file; do
        pid=$(head -n 1 "$file")
        for tries in $(seq 100); do
            [ "/proc/$pid/cwd" -ef "${file%/*}" ] || break
            kill -QUIT "$pid" 2>/dev/null || true
            sleep 0.1
        done
    done
    rm -rf "$sandbox"
}

# Builds the extension, and installs it inside the sandbox.  Writes load.conf,
# the settings with which a server finds it there.
sandbox_build()
{
    local sharedir pkglibdir

    make -C "$top" -s PG_CONFIG="$PG_CONFIG" DESTDIR="$sandbox/dest" "$@" \
        install >"$sandbox/build.log" 2>&1 ||
        { cat "$sandbox/build.log" >&2; die "the build failed"; }

    sharedir=$sandbox/dest$("$PG_CONFIG" --sharedir)
    pkglibdir=$sandbox/dest$("$PG_CONFIG" --pkglibdir)
    {
        # PostgreSQL has the former from 18 on, Debian's has the latter before
        if server_knows extension_control_path; then
            echo "extension_control_path = '$sharedir:\$system'"
        elif server_knows extension_destdir; then
            echo "extension_destdir = '$sandbox/dest'"
        else
            die "$PG_CONFIG: this server loads extensions from its own" \
                "directories only; try make install, make installcheck"
        fi
        echo "dynamic_library_path = '$pkglibdir:\$libdir'"
    } >"$sandbox/load.conf"
}

server_knows()
{
    postgres --describe-config | cut -f 1 | grep -x "$1" >/dev/null
}

# Starts a server that listens on a socket in the sandbox and finds the
# extension there; psql and the like find the server by themselves then.
sandbox_start()
{
    local setting

    initdb -D "$sandbox/data" -U postgres -A trust -E UTF8 --locale=C -N \
        >"$sandbox/initdb.log" 2>&1 ||
        { cat "$sandbox/initdb.log" >&2; die "initdb failed"; }
    {
        echo "listen_addresses = ''"
        echo "unix_socket_directories = '$sandbox'"
        echo "fsync = off"
        cat "$sandbox/load.conf"
        for setting in "$@"; do
            echo "$setting"
        done
    } >>"$sandbox/data/postgresql.conf"

    pg_ctl -D "$sandbox/data" -l "$sandbox/server.log" -w -s start ||
        { cat "$sandbox/server.log" >&2; die "the server did not start"; }
    export PGHOST=$sandbox PGUSER=postgres PGDATABASE=postgres
}
