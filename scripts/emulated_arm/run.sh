#!/usr/bin/env bash
# Runs a command as on Linux on ARM: this checkout's packages and the lock's wheels for aarch64, emulated by QEMU.
#
#     scripts/emulated_arm/run.sh CPU COMMAND...      CPU: neoverse-v1 (i8mm, bf16), neoverse-n1 (dot products), cortex-a72
#
# It needs root, Debian's mmdebstrap, qemu-user-static and g++-aarch64-linux-gnu, and the first time 4 GB to download, 7 GB of
# disk. Packages are extracted, not configured, so that nothing is emulated to make the root; kernels are cross-compiled. What is
# mounted, and that Linux starts the emulator for programs of ARM, is of a namespace that ends with the command (Linux 6.7).
#
# QEMU_PAGESIZE=65536 has the pages of Grace and some distributions, 16384 those of a Mac.
# EMULATED_ARM_ROOT   the folder that keeps the root; by default ~/.cache/infer-emulated-arm
set -euo pipefail
export cpu=$1 checkout=$PWD base=${EMULATED_ARM_ROOT:-${XDG_CACHE_HOME:-$HOME/.cache}/infer-emulated-arm}
shift
export root=$base/root site=/opt/site common="fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid"
case $cpu in
    neoverse-v1) part=0xd40 features="$common atomics fphp asimdhp asimddp i8mm bf16" qemu=max ;;
    neoverse-n1) part=0xd0c features="$common atomics fphp asimdhp asimddp" qemu=neoverse-n1 ;;
    cortex-a72) part=0xd08 features="$common" qemu=cortex-a72 ;;
    *) echo "the CPU is \`$cpu\`; it must be neoverse-v1, neoverse-n1 or cortex-a72" >&2 && exit 2 ;;
esac

if [ ! -e "$root/.extracted" ]; then
    rm -rf "$root" && mkdir -p "$base"
    packages=python3.11,python3.11-minimal,libpython3.11-stdlib,libgomp1,libstdc++6,libatomic1,coreutils,bash,dash,ca-certificates
    mmdebstrap --variant=extract --mode=root --architectures=arm64 --include="$packages" bookworm "$root"
    mkdir -p "$root"/{opt/checkout,opt/cross/usr,lib64,{usr/,}lib/x86_64-linux-gnu,usr/aarch64-linux-gnu,var/cache/infer}
    touch "$root/.extracted"
fi
lock=$(sha256sum uv.lock | cut -c1-16)
if [ "$(cat "$base/lock" 2>/dev/null)" != "$lock" ]; then
    rm -rf "${root:?}$site"
    aarch64=(--quiet --python-platform aarch64-manylinux_2_36 --python-version 3.11 --no-deps --target "$root$site")
    uv export --quiet --frozen --no-emit-workspace --no-hashes --no-default-groups --group test --group model >"$base/requirements.txt"
    uv pip install "${aarch64[@]}" --only-binary=:all: -r "$base/requirements.txt"
    uv pip install "${aarch64[@]}" packages/infer-{kernels,models,cache,engine,server} # for their metadata
    echo "$lock" >"$base/lock"
fi

# What Linux says of such a CPU.
for ((i = 0; i < $(nproc); i++)); do
    printf 'processor\t: %d\nBogoMIPS\t: 50.00\nFeatures\t: %s\nCPU implementer\t: 0x41\nCPU part\t: %s\n\n' "$i" "$features" "$part"
done >"$base/cpuinfo"
path=$site
for package in kernels models cache engine server proofs; do path=/opt/checkout/packages/infer-$package/src:$path; done
own=(HOME=/root PATH=/usr/bin:/bin LC_ALL=C PYTHONUTF8=1 PYTHONPATH="$path" PYTHONDONTWRITEBYTECODE=1 INFER_CACHE_DIR=/var/cache/infer
    HYPOTHESIS_STORAGE_DIRECTORY=/tmp/hypothesis QEMU_CPU="$qemu" CXX=/opt/cross/usr/bin/aarch64-linux-gnu-g++
    INFER_CPU_KERNELS_FLAGS="-mcpu=$cpu ${INFER_CPU_KERNELS_FLAGS:-}" ${QEMU_PAGESIZE:+QEMU_PAGESIZE=$QEMU_PAGESIZE})
export QEMU_CPU=$qemu

inside='
set -e
for folder in proc sys dev; do mount --rbind /$folder "$root/$folder"; done
mount --bind "$base/cpuinfo" "$root/proc/cpuinfo"
mount --bind "$checkout" "$root/opt/checkout"
# The cross compiler, and what it runs with, whose names are none of ARM.
mount --bind /usr "$root/opt/cross/usr"
for folder in usr/aarch64-linux-gnu usr/lib/x86_64-linux-gnu lib/x86_64-linux-gnu lib64; do mount --bind /$folder "$root/$folder"; done
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
magic="\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
mask="\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
printf "%s" ":aarch64:M::$magic:$mask:$(command -v qemu-aarch64-static):F" >/proc/sys/fs/binfmt_misc/register
exec chroot "$root" /usr/bin/env -i "$@"
'
exec unshare --map-root-user --mount --pid --fork --kill-child --mount-proc bash -c "$inside" inside \
    "${own[@]}" bash -c 'cd /opt/checkout && exec "$@"' run "$@"
