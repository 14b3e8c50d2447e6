# A throw-away root with Debian's packages, for the scripts behind "make
# check-all" and "make check-package".  Needs sandbox.sh, and root's rights.

# root_make DIRECTORY SUITES PACKAGES [MMDEBSTRAP-OPTION...]: makes a root of
# the first suite, and of the others for packages that it lacks, from the
# archive that this machine's packages come from.  A comma separates packages.
# Fails, with its output in DIRECTORY.log, if a package is not there.
root_make()
{
    local dir=$1 suites=$2 packages=$3 uris main security suite
    local keys=/usr/share/keyrings/debian-archive-keyring.gpg

    shift 3
    is_installed mmdebstrap ||
        { as_root apt-get -qq update >&2; apt_install mmdebstrap; }
    uris=$(apt-get indextargets --format '$(REPO_URI)' | sort -u)
    main=$(grep -E '/debian/?$' <<<"$uris" | head -1)
    security=$(grep -E '/debian-security/?$' <<<"$uris" | head -1)
    rm -rf --one-file-system "$dir"
    for suite in $suites; do
        case $suite in
            *-security) echo "deb [signed-by=$keys] $security $suite main" ;;
            *) echo "deb [signed-by=$keys] $main $suite main" ;;
        esac
    done | mmdebstrap --variant=minbase \
        --aptopt='Apt::Install-Recommends "false"' \
        --aptopt='Acquire::Check-Valid-Until "false"' \
        --aptopt='Acquire::Check-Date "false"' \
        --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' \
        --dpkgopt='path-exclude=/usr/lib/llvm-*/*' --dpkgopt='force-unsafe-io' \
        --essential-hook='mkdir -p "$1/etc/postgresql-common"; echo "create_main_cluster = false" >"$1/etc/postgresql-common/createcluster.conf"' \
        --include="$packages" "$@" "${suites%% *}" "$dir" - \
        >"$dir.log" 2>&1
}

# root_enter DIRECTORY: what tests need beside the files
root_enter()
{
    mount -t proc proc "$1/proc" ||
        echo "no /proc in the root: some tests will fail"
}

root_remove()
{
    umount "$1/proc" 2>/dev/null || true
    rm -rf --one-file-system "$1"
}
