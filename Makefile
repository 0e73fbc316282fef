# What a user and a developer run. `make try` and `make test` install what is missing first (as root), or say what to
# install.

CARGO ?= cargo
PREFIX ?= /usr/local
SBINDIR ?= /sbin
DESTDIR ?=
# Directory whose files `make try` copies.
SOURCE ?= /usr/share
# Tiers in memory are refused, so temporary files must lie on a disk.
TMPDIR ?= /var/tmp
export TMPDIR

.PHONY: all build try test test-heavy test-io-modes test-io-uring test-open-modes test-spread fmt clippy install uninstall dependencies dependencies-test

all: build

build:
	$(CARGO) build --release --locked -p polymux

dependencies:
	scripts/install-dependencies.sh try

dependencies-test:
	scripts/install-dependencies.sh test

try: dependencies build
	target/release/polymux try $(SOURCE)

# Form, lints, unit and integration tests, and the suites on mounted volumes.
test: dependencies-test fmt clippy
	$(CARGO) test --workspace --locked --no-fail-fast

# The long form of the suites that have one: 200,000 operations of fsx for each seed, a directory of a million entries.
test-heavy: dependencies-test
	POLYMUX_HEAVY=1 $(CARGO) test --locked -p polymux --test mounted_fsx --test mounted_million

# Every user, file and way to change it, on ext4 and through the mount in three modes of I/O: 12,000 entries.
.PHONY: test-privileges
test-privileges: dependencies-test
	POLYMUX_HEAVY=1 $(CARGO) test --locked -p polymux --test mounted_privileges

# The group `quick` of xfstests from a directory where it was built, on volumes over loop devices; as root. Anything that fails or passes
# against scripts/xfstests-expected.txt fails here. ARGUMENTS chooses other tests: ARGUMENTS="generic/001 generic/002".
XFSTESTS ?=
ARGUMENTS ?=
.PHONY: test-xfstests
test-xfstests: build
	@test -n "$(XFSTESTS)" || { echo "say where xfstests is: make test-xfstests XFSTESTS=DIRECTORY"; exit 2; }
	scripts/xfstests.sh target/release/polymux "$(XFSTESTS)" $(ARGUMENTS)

# The daemon dies at MOMENTS random moments under a load that syncs nothing, by kill -9, SIGSEGV and for want of memory: every
# operation that returned is there after the next mount. As root.
MOMENTS ?= 500
.PHONY: test-death
test-death: dependencies-test
	POLYMUX_DEATH_MOMENTS=$(MOMENTS) $(CARGO) test --locked -p polymux --test mounted_death_moments -- --nocapture

# Daemons die at KILLS random moments beside programs that change everything there is, and beside two that fill the volume: no program sees an
# error, because the supervisor starts the next one. As root.
KILLS ?= 500
.PHONY: test-supervisor
test-supervisor: dependencies-test
	POLYMUX_SUPERVISOR_KILLS=$(KILLS) $(CARGO) test --locked -p polymux --test mounted_supervisor -- --nocapture --test-threads 1

# A volume that is not used takes at most two wake-ups a second and 0.05 % of a processor, for REST seconds in each mode of I/O.
REST ?= 600
.PHONY: test-rest
test-rest: dependencies-test
	POLYMUX_REST_SECONDS=$(REST) $(CARGO) test --locked -p polymux --test mounted_rest -- --nocapture --test-threads 1

# A million random sequences of opening, mapping, moving and closing against the real kernel.
test-open-modes: dependencies-test
	OPEN_MODES_SEQUENCES=1000000 $(CARGO) test --release --locked -p polymux-fuse --test open_modes -- --nocapture

# The suites on mounted volumes with the bytes of all open files through the daemon: with the kernel's page cache, without it, with writes that the kernel
# collects, and the same on mounts that outlive their daemon.
test-io-modes: dependencies-test
	POLYMUX_TEST_IO=cached $(CARGO) test --locked --no-fail-fast -p polymux -p polymux-lab --test 'mounted_*'
	POLYMUX_TEST_IO=direct $(CARGO) test --locked --no-fail-fast -p polymux -p polymux-lab --test 'mounted_*'
	POLYMUX_TEST_IO=write-back $(CARGO) test --locked --no-fail-fast -p polymux -p polymux-lab --test 'mounted_*'
	POLYMUX_TEST_IO=supervised $(CARGO) test --locked --no-fail-fast -p polymux -p polymux-lab --test 'mounted_*'

# The suites on mounted volumes, with requests through io_uring (root; the kernel's switch for it is on while a volume is
# being mounted).
test-io-uring: dependencies-test
	POLYMUX_TEST_TRANSPORT=io-uring $(CARGO) test --locked --no-fail-fast -p polymux -p polymux-lab --test 'mounted_*'

# The same with files spread over all tiers (policy `spread`).
test-spread: dependencies-test
	POLYMUX_TEST_POLICY=spread $(CARGO) test --locked --no-fail-fast -p polymux -p polymux-lab --test 'mounted_*'

fmt:
	$(CARGO) fmt --all --check

clippy:
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

# `mount -t polymux` and fstab look for helpers in /sbin only.
install: build
	install -D -m 0755 target/release/polymux "$(DESTDIR)$(PREFIX)/bin/polymux"
	install -d "$(DESTDIR)$(SBINDIR)"
	ln -sfn "$(PREFIX)/bin/polymux" "$(DESTDIR)$(SBINDIR)/mount.polymux"
	ln -sfn "$(PREFIX)/bin/polymux" "$(DESTDIR)$(SBINDIR)/mount.fuse.polymux"

# The library for programs that have a volume open themselves (docs/EMBEDDING.md): libpolymux.so, polymux.h and the file for pkg-config.
LIBDIR ?= $(PREFIX)/lib
LIBRARY_ABI = 1
.PHONY: library install-library uninstall-library
library:
	$(CARGO) build --release --locked -p polymux-c

install-library: library
	install -D -s -m 0644 "$(or $(CARGO_TARGET_DIR),target)/release/libpolymux_c.so" "$(DESTDIR)$(LIBDIR)/libpolymux.so.$(LIBRARY_ABI)"
	ln -sfn "libpolymux.so.$(LIBRARY_ABI)" "$(DESTDIR)$(LIBDIR)/libpolymux.so"
	install -D -m 0644 crates/polymux-c/include/polymux.h "$(DESTDIR)$(PREFIX)/include/polymux.h"
	install -d "$(DESTDIR)$(LIBDIR)/pkgconfig"
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e "s|@VERSION@|$$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)|" \
		crates/polymux-c/polymux.pc.in > "$(DESTDIR)$(LIBDIR)/pkgconfig/polymux.pc"
	[ -n "$(DESTDIR)" ] || ldconfig || echo "run ldconfig as root, so that programs find the library"

uninstall-library:
	rm -f "$(DESTDIR)$(LIBDIR)/libpolymux.so.$(LIBRARY_ABI)" "$(DESTDIR)$(LIBDIR)/libpolymux.so" \
		"$(DESTDIR)$(PREFIX)/include/polymux.h" "$(DESTDIR)$(LIBDIR)/pkgconfig/polymux.pc"

# The libraries with which `polymux run` has programs read past the mount (docs/LEASES.md).
PRELOAD_LIBRARIES = libpolymux_preload.so libpolymux_direct.so
.PHONY: preload install-preload uninstall-preload
preload:
	$(CARGO) build --release --locked -p polymux-direct

install-preload: preload
	for library in $(PRELOAD_LIBRARIES); do \
		install -D -s -m 0644 "$(or $(CARGO_TARGET_DIR),target)/release/$$library" "$(DESTDIR)$(LIBDIR)/polymux/$$library" || exit 1; \
	done

uninstall-preload:
	for library in $(PRELOAD_LIBRARIES); do rm -f "$(DESTDIR)$(LIBDIR)/polymux/$$library"; done
	rmdir "$(DESTDIR)$(LIBDIR)/polymux" 2>/dev/null || true

uninstall:
	rm -f "$(DESTDIR)$(SBINDIR)/mount.polymux" "$(DESTDIR)$(SBINDIR)/mount.fuse.polymux" "$(DESTDIR)$(PREFIX)/bin/polymux"

# Measuring commands (docs/BENCHMARKS.md). Each works in a directory of its own below DIRECTORY, on the device to
# measure, and removes it at the end. BENCH_OPTIONS is passed on, `--json` or `--help` for example.
DIRECTORY ?= /var/tmp
BENCH_OPTIONS ?=
BENCH = $(CARGO) run --quiet --release --locked -p polymux-bench --

# The same work on the native file system, on mergerfs and on Polymux, on loop devices in memory that are throttled; as root.
# BENCH_OPTIONS="--only untar" or "--list" chooses. What is found is left in BENCH_RESULTS, as JSON and charts;
# `bench-document` puts it into docs/BENCHMARKS.md, with the charts beside it.
BENCH_RESULTS ?= target/bench
.PHONY: bench bench-quick bench-document dependencies-bench

dependencies-bench:
	scripts/install-dependencies.sh bench

bench: dependencies-bench
	$(CARGO) build --release --locked -p polymux -p polymux-bench
	$(BENCH) suite --json $(BENCH_RESULTS)/suite.json --svg $(BENCH_RESULTS)/charts $(BENCH_OPTIONS)

# A look in less than two minutes, once it is built.
bench-quick: dependencies-bench
	$(CARGO) build --release --locked -p polymux -p polymux-bench
	$(BENCH) suite --quick --json $(BENCH_RESULTS)/quick.json --svg $(BENCH_RESULTS)/quick-charts $(BENCH_OPTIONS)

bench-document:
	$(BENCH) document --json $(BENCH_RESULTS)/suite.json --document docs/BENCHMARKS.md --svg docs/charts

.PHONY: bench-meta bench-meta-loop bench-flush bench-large bench-store bench-append

bench-meta:
	$(BENCH) meta --directory "$(DIRECTORY)" $(BENCH_OPTIONS)

# The same on a new ext4 with a journal, in a loop device over a file below DIRECTORY; as root.
bench-meta-loop:
	benchmarks/on-loop-device.sh "$(DIRECTORY)" 16G $(BENCH) meta $(BENCH_OPTIONS)

bench-flush:
	$(BENCH) flush --directory "$(DIRECTORY)" $(BENCH_OPTIONS)

# What it costs that operations outlive the daemon: forty pairs with and without memory for that, on one processor, so that wake-ups
# across processors do not hide it; as root.
.PHONY: bench-death
bench-death:
	$(CARGO) build --release --locked -p polymux
	taskset -c 1 $(BENCH) death-cost --pairs 40 --directory "$(DIRECTORY)" $(BENCH_OPTIONS)

# The log in byte-addressable memory, with a test double in /dev/shm: sweeps of its latency and its size.
.PHONY: bench-region
bench-region:
	$(BENCH) region --directory "$(DIRECTORY)" $(BENCH_OPTIONS)

# Through a mounted volume; as root.
bench-append:
	$(CARGO) build --release --locked -p polymux -p polymux-bench
	benchmarks/append-through-mount.sh target/release/polymux target/release/polymux-bench "$(DIRECTORY)" $(BENCH_OPTIONS)

# A volume inside a program against the file system below it, call by call.
.PHONY: bench-in-program
bench-in-program:
	$(CARGO) build --release --locked -p polymux -p polymux-bench
	$(BENCH) in-program --directory "$(DIRECTORY)" $(BENCH_OPTIONS)

# Files of a mounted volume, read by a program with a lease, through the mount, and natively.
.PHONY: bench-leases
bench-leases:
	$(CARGO) build --release --locked -p polymux -p polymux-bench
	$(BENCH) leases --directory "$(DIRECTORY)" $(BENCH_OPTIONS)

# Random writes into a file of a mounted volume by programs with leases, beside readers, through the mount, and natively.
.PHONY: bench-lease-writes
bench-lease-writes:
	$(CARGO) build --release --locked -p polymux -p polymux-bench
	$(BENCH) lease-writes --directory "$(DIRECTORY)" $(BENCH_OPTIONS)

# Programs as they come under the library of `polymux run`, without it, and natively.
.PHONY: bench-preload
bench-preload:
	$(CARGO) build --release --locked -p polymux -p polymux-direct -p polymux-bench
	$(BENCH) preload --directory "$(DIRECTORY)" $(BENCH_OPTIONS)

# Between loop devices in memory that are throttled to the speed of three kinds of devices; as root. Every direction with
# one large file and with a thousand small ones; what a move costs an application; how soon the hot part of a file is on the
# fast tier; the fast tier filled at full speed.
.PHONY: bench-move bench-move-interference bench-move-latency bench-move-hot-set bench-move-watermarks
bench-move:
	$(BENCH) move $(BENCH_OPTIONS)

bench-move-interference:
	$(BENCH) move-interference $(BENCH_OPTIONS)

bench-move-latency:
	$(BENCH) move-latency $(BENCH_OPTIONS)

bench-move-hot-set:
	$(BENCH) move-hot-set $(BENCH_OPTIONS)

bench-move-watermarks:
	$(BENCH) move-watermarks $(BENCH_OPTIONS)

# Files on all devices at once, against the sum of the devices; as root. BENCH_OPTIONS="--devices 3 --measure random,convergence"
# chooses among sequential, random, convergence, policies, shared, mixed, new-volume, small and graph.
.PHONY: bench-spread
bench-spread:
	$(CARGO) build --release --locked -p polymux -p polymux-lab -p polymux-bench
	$(BENCH) spread $(BENCH_OPTIONS)

# A hot set on an SSD and a disk, beside native file systems and mergerfs; as root, about ten minutes.
.PHONY: bench-tiering
bench-tiering: dependencies-bench
	$(CARGO) build --release --locked -p polymux -p polymux-lab -p polymux-bench
	$(BENCH) tiering $(BENCH_OPTIONS)

# Ten million files; takes some minutes and about 10 GiB.
bench-large:
	$(BENCH) large --directory "$(DIRECTORY)" $(BENCH_OPTIONS)

# Against the store that Polymux began with, which lives in a package of its own outside the workspace.
bench-store:
	$(CARGO) run --quiet --release --manifest-path benchmarks/interim-store/Cargo.toml -- \
		--directory "$(DIRECTORY)" $(BENCH_OPTIONS)

# 2000 programs that read past the mount are killed or stopped at any instruction, while movers move the file (some minutes); and an hour of garbage in the
# memory that a program shares with the daemon.
.PHONY: test-leases
test-leases:
	POLYMUX_HEAVY=1 $(CARGO) test --locked -p polymux --test mounted_leases_kill --test mounted_lease_writes_kill --test mounted_preload --test mounted_pjdfstest -- --nocapture

# Thousands of schedules of the model checker shuttle: log, group flush and memtable switch; and the mover beside writers,
# readers, appends, truncation, fsync and unlink; and readers of other processes. Takes some minutes.
.PHONY: test-schedules
test-schedules:
	RUSTFLAGS="--cfg shuttle" $(CARGO) test --locked --release -p polymux-meta --lib --target-dir target/schedules schedules
	RUSTFLAGS="--cfg shuttle" $(CARGO) test --locked --release -p polymux-records --lib --target-dir target/schedules schedules
	RUSTFLAGS="--cfg shuttle" $(CARGO) test --locked --release -p polymux-fs --lib --target-dir target/schedules \
		migration_schedules

# The loads of `bench-tiering` in virtual time, over simulated devices (docs/design/0039).
.PHONY: bench-simulated
bench-simulated:
	$(BENCH) tiering --measure hot-set,two-ssds,large-set --sides simulated --rounds 20 $(BENCH_OPTIONS)
	$(BENCH) tiering --measure disturbed --sides simulated --rounds 16 $(BENCH_OPTIONS)

# PING_PONG random workloads in virtual time: no range comes to the faster tier again before its move has paid back.
.PHONY: test-ping-pong
test-ping-pong: PING_PONG ?= 10000
test-ping-pong:
	POLYMUX_PING_PONG=$(PING_PONG) $(CARGO) test --locked --release -p polymux-fs --test prompt_promotion ping_pong -- --nocapture

# Every on-disk format against mutated bytes, each target for SECONDS; a short form is part of `make test`.
SECONDS ?= 60
.PHONY: fuzz
fuzz:
	POLYMUX_FUZZ_SECONDS=$(SECONDS) $(CARGO) test --locked --release -p polymux --test fuzz_formats -- --nocapture

# A volume of format version VERSION, to be kept in the repository; one that is there is never replaced.
VERSION ?= 1
.PHONY: fixture
fixture:
	$(CARGO) run --locked -p polymux --example make_fixture -- $(VERSION) crates/polymux/tests/fixtures

# Power failures at any moment, over all devices of a volume: WORKLOADS workloads of three symbols and half as many by
# chance beside all shorter ones, over a model of the metadata store; STORED workloads over the real one, and a fifteenth as
# many that lose it and go on from its second copy. Each planted fault must be found, and it fails where it saw fewer than 2,000
# workloads or 100,000 distinct states. Takes less than half an hour on two cores. Then the metadata store alone, over SEEDS
# times as many runs as `make test` looks at. STREAMS workloads are streams that nobody syncs, of which it looks at 20,000 states at
# least. As root, for the recording file system.
SEEDS ?= 10
WORKLOADS ?= 2400
STORED ?= 36
STREAMS ?= 200
.PHONY: test-crash-states
test-crash-states:
	POLYMUX_CRASH_LONG=$(WORKLOADS) POLYMUX_CRASH_STORED=$(STORED) POLYMUX_CRASH_STREAMS=$(STREAMS) \
		$(CARGO) test --locked --release -p polymux-fs --test crash_states -- --nocapture --test-threads 1
	POLYMUX_CRASH_SEEDS=$(SEEDS) $(CARGO) test --locked -p polymux-meta --test crash_states -- --nocapture

# Single wrong bits in log, tables, headers, labels and second copy of volumes that a crash left and that were unmounted: FLIPS of them,
# with the second copy in place, away and coming back, and without one. Everything is in memory, where that can be.
FLIPS ?= 2000
.PHONY: test-bit-flips
test-bit-flips:
	$(if $(wildcard /dev/shm),TMPDIR=/dev/shm) POLYMUX_BIT_FLIPS=$(FLIPS) $(CARGO) test --locked -p polymux-fs --test bit_flips -- --nocapture

# Power failures below a mounted volume on ext4 and XFS: IMAGES images of what the disks may keep, about two seconds each; as
# root. SEED begins another series, IMAGE looks at one of them alone (docs/design/0015-disk-crash-images.md).
IMAGES ?= 500
SEED ?=
IMAGE ?=
.PHONY: test-disk-crash
test-disk-crash: dependencies-test
	POLYMUX_DISK_CRASH_IMAGES=$(IMAGES) POLYMUX_DISK_CRASH_SEED=$(SEED) POLYMUX_DISK_CRASH_IMAGE=$(IMAGE) \
		$(CARGO) test --locked -p polymux --test mounted_disk_crash -- --nocapture --test-threads 1

# kill -9 of the daemon ROUNDS times under mixed load while blocks move; five seconds a round.
ROUNDS ?= 300
.PHONY: test-kill
test-kill: dependencies-test
	POLYMUX_KILL_ROUNDS=$(ROUNDS) $(CARGO) test --locked -p polymux --test mounted_kill_moves -- --nocapture

# `make try` RUNS times over ten kinds of sources, as root and as a user, alone and beside a load; up to a minute a run.
RUNS ?= 50
.PHONY: test-try
test-try: dependencies-test
	POLYMUX_TRY_RUNS=$(RUNS) $(CARGO) test --locked -p polymux --test mounted_try -- --nocapture --test-threads 1

# Volumes of four tiers and 20,000 files lose one of them for good: ROUNDS volumes (30 without it), one to three minutes each.
.PHONY: test-forget
test-forget: dependencies-test
	POLYMUX_FORGET_ROUNDS=$(if $(filter command environment,$(firstword $(origin ROUNDS))),$(ROUNDS),30) POLYMUX_FORGET_FILES=20000 \
		$(CARGO) test --locked -p polymux --test mounted_forget -- --nocapture --test-threads 1
